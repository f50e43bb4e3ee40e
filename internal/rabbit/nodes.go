package rabbit

import (
	"context"
	"strconv"
)

// Node is a member of the broker's cluster.
type Node struct {
	Name string
	// PID is the process's id on the node's machine.
	PID int
}

// Nodes returns the members of the cluster. The user needs the tag "monitoring".
func (m *Management) Nodes(ctx context.Context) ([]Node, error) {
	var answer []struct {
		Name string `json:"name"`
		PID  string `json:"os_pid"`
	}
	if err := m.get(ctx, "list nodes", "/api/nodes?columns=name,os_pid", &answer); err != nil {
		return nil, err
	}
	nodes := make([]Node, 0, len(answer))
	for _, n := range answer {
		pid, _ := strconv.Atoi(n.PID)
		nodes = append(nodes, Node{Name: n.Name, PID: pid})
	}
	return nodes, nil
}
