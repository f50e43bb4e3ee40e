package rabbit

import (
	"context"
	"fmt"
	"net/http"
	"time"
)

// Clock asks for the time of the management API's host, by the header of its answer: to the second, and right to half the time that the answer
// took, which is told too.
func (m *Management) Clock(ctx context.Context) (at time.Time, took time.Duration, err error) {
	a, err := m.access()
	if err != nil {
		return at, 0, fmt.Errorf("%w: read its clock: %w", ErrManagementUnreachable, err)
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, a.base.JoinPath("/api/overview").String(), http.NoBody)
	if err != nil {
		return at, 0, fmt.Errorf("%w: read its clock", ErrManagementUnreachable)
	}
	began := time.Now()
	response, err := a.do("read its clock", request) // without the password: also a refusal tells the time
	if err != nil {
		return at, 0, err
	}
	took = time.Since(began)
	if err := response.Body.Close(); err != nil {
		return at, 0, fmt.Errorf("%w at %s: read its clock: %w", ErrManagementUnreachable, a.base.Host, err)
	}
	if at, err = http.ParseTime(response.Header.Get("Date")); err != nil {
		return at, 0, fmt.Errorf("%w at %s: it does not tell its time", ErrManagementUnreachable, a.base.Host)
	}
	return at, took, nil
}

// Alarms are the nodes whose memory or disk alarm is on: while one is, nothing that is published is taken.
type Alarms struct{ Memory, Disk []string }

// Alarms asks for the alarms of all nodes. It needs the tag "monitoring".
func (m *Management) Alarms(ctx context.Context) (a Alarms, err error) {
	var nodes []struct {
		Name   string `json:"name"`
		Memory bool   `json:"mem_alarm"`
		Disk   bool   `json:"disk_free_alarm"`
	}
	err = m.get(ctx, "read alarms", "/api/nodes?columns=name,mem_alarm,disk_free_alarm", &nodes)
	for _, n := range nodes {
		if n.Memory {
			a.Memory = append(a.Memory, n.Name)
		}
		if n.Disk {
			a.Disk = append(a.Disk, n.Name)
		}
	}
	return a, err
}

// VhostLimits bound a vhost; absent, there is no bound.
type VhostLimits struct {
	Queues      *int `json:"max-queues"`
	Connections *int `json:"max-connections"`
}

// VhostLimits asks for the vhost's limits.
func (m *Management) VhostLimits(ctx context.Context) (VhostLimits, error) {
	var answer []struct {
		Value VhostLimits `json:"value"`
	}
	err := m.get(ctx, "read limits", m.inVhost("vhost-limits"), &answer)
	if err != nil || len(answer) == 0 {
		return VhostLimits{}, err
	}
	return answer[0].Value, nil
}
