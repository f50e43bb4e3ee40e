package testkit

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// Cluster is a RabbitMQ cluster of three nodes of the test's own, each in a network of its own: see scripts/cluster. Nodes count from 1.
type Cluster struct {
	// AMQP is the default vhost "/", through a load balancer.
	AMQP
	// Hosts is its URL with all nodes' addresses.
	Hosts       string
	script, dir string
	names       []string
	nodes       []AMQP // past the balancer
}

// PrivateCluster starts a cluster, which takes half a minute, and removes it when the test ends. Without root it leaves the test out.
func PrivateCluster(t testing.TB) *Cluster {
	t.Helper()
	needsServices(t)
	if os.Geteuid() != 0 {
		t.Skip("a cluster on one machine needs network namespaces, and they need root")
	}
	dir, err := os.MkdirTemp("", "surefoot-cluster-") //nolint:usetesting // t.TempDir is closed to the servers' user
	require.NoError(t, err)
	require.NoError(t, os.Chmod(dir, 0o755)) // the servers' user must pass
	c := &Cluster{script: filepath.Join(repository(t), "scripts", "cluster"), dir: dir}
	t.Cleanup(func() { c.run(context.WithoutCancel(t.Context()), t, "down") })
	var amqps, managements []string
	var password string
	for line := range strings.Lines(c.run(t.Context(), t, "up")) {
		fields := strings.Fields(line)
		require.Len(t, fields, 3, "%q", line)
		ip := fields[1]
		password = fields[2]
		c.names = append(c.names, fields[0])
		c.nodes = append(c.nodes, vhostAt(ip+":5672", ip+":15672", password))
		amqps, managements = append(amqps, ip+":5672"), append(managements, ip+":15672")
	}
	c.Hosts = vhostAt(strings.Join(amqps, ","), "", password).URL
	c.AMQP = vhostAt(balance(t, amqps...), balance(t, managements...), password)
	return c
}

func vhostAt(amqp, management, password string) AMQP {
	u := url.URL{Scheme: "amqp", User: url.UserPassword("surefoot", password), Host: amqp, Path: "/"}
	return AMQP{URL: u.String(), ManagementURL: "http://" + management, Vhost: "/"}
}

// Start starts a stopped node and returns when it accepts clients.
func (c *Cluster) Start(t testing.TB, node int) { t.Helper(); c.on(t, "start", node) }

// Stop shuts a node down in an orderly way and returns when it is gone.
func (c *Cluster) Stop(t testing.TB, node int) { t.Helper(); c.on(t, "stop", node) }

// Kill kills a node with SIGKILL.
func (c *Cluster) Kill(t testing.TB, node int) { t.Helper(); c.on(t, "kill", node) }

// Cut takes a node off the network: nothing reaches it any more, and nobody is told.
func (c *Cluster) Cut(t testing.TB, node int) { t.Helper(); c.on(t, "cut", node) }

// Heal puts it back.
func (c *Cluster) Heal(t testing.TB, node int) { t.Helper(); c.on(t, "heal", node) }

func (c *Cluster) on(t testing.TB, command string, node int) {
	t.Helper()
	c.run(t.Context(), t, command, strconv.Itoa(node))
}

// Leader returns the node that leads a quorum queue.
func (c *Cluster) Leader(t testing.TB, queue string) int {
	t.Helper()
	leader := 0
	EventuallyNil(t, time.Minute, "the leader of "+queue, func() error {
		q, err := c.queue(t, queue)
		leader = slices.Index(c.names, q.Leader) + 1
		if err == nil && leader == 0 {
			err = fmt.Errorf("it is %q", q.Leader)
		}
		return err
	})
	return leader
}

// Complete waits until all members of a quorum queue are online.
func (c *Cluster) Complete(t testing.TB, queue string) {
	t.Helper()
	EventuallyNil(t, 2*time.Minute, "all members of "+queue, func() error { return c.complete(t, queue) })
}

// CompleteOrRestart waits until all members of a quorum queue are online, and after a minute restarts the node, as its operator would.
func (c *Cluster) CompleteOrRestart(t testing.TB, queue string, node int) {
	t.Helper()
	for end := time.Now().Add(time.Minute); time.Now().Before(end); <-time.After(pollInterval) {
		if c.complete(t, queue) == nil {
			return
		}
	}
	t.Logf("node %d does not come back by itself, and is restarted", node)
	c.Kill(t, node) // it may not obey
	c.Start(t, node)
	c.Complete(t, queue)
}

func (c *Cluster) complete(t testing.TB, queue string) error {
	t.Helper()
	q, err := c.queue(t, queue)
	if err == nil && len(q.Online) != len(c.nodes) {
		err = fmt.Errorf("only %v are online", q.Online)
	}
	return err
}

type quorum struct {
	Leader string   `json:"leader"`
	Online []string `json:"online"`
}

// queue asks each node until one answers.
func (c *Cluster) queue(t testing.TB, queue string) (q quorum, err error) {
	t.Helper()
	for _, node := range c.nodes {
		status, body, failure := node.call(t.Context(), "GET", "/api/queues/%2F/"+url.PathEscape(queue), nil)
		if failure == nil && status != 200 {
			failure = fmt.Errorf("%d: %s", status, body)
		}
		if failure == nil {
			return q, json.Unmarshal(body, &q)
		}
		err = errors.Join(err, failure)
	}
	return q, err
}

func (c *Cluster) run(ctx context.Context, t testing.TB, args ...string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(ctx, 2*startTimeout)
	defer cancel()
	command := exec.CommandContext(ctx, c.script, args...)
	command.Env = append(os.Environ(), "SUREFOOT_CLUSTER_DIR="+c.dir, "SUREFOOT_STACK_PARENT="+strconv.Itoa(os.Getpid()))
	var out, errs strings.Builder
	command.Stdout, command.Stderr, command.WaitDelay = &out, &errs, time.Second
	err := command.Run()
	require.NoError(t, err, "scripts/cluster %s: %s", strings.Join(args, " "), errs.String())
	return out.String()
}
