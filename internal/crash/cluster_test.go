//go:build crash

package crash_test

import (
	"testing"
	"time"

	"github.com/surefoot-mq/surefoot/internal/testkit"
)

// TestClusterLosesItsLeader kills the node that leads the work queue, which is a quorum queue over three nodes.
func TestClusterLosesItsLeader(t *testing.T) {
	cluster := testkit.PrivateCluster(t)
	h := newClusterHarness(t, cluster, cluster.Hosts)
	leader := cluster.Leader(t, "crash.work")
	begun := time.Now()
	cluster.Kill(t, leader)
	h.flowsAgain(t, begun, "leader killed")
	cluster.Start(t, leader)
	cluster.Complete(t, "crash.work")
	h.flows(t)
	h.finish(t)
}

// TestClusterCutOffNode takes the leader off the network: its clients hang, its peers go on, and it pauses until it sees them again.
func TestClusterCutOffNode(t *testing.T) {
	cluster := testkit.PrivateCluster(t)
	h := newClusterHarness(t, cluster, cluster.Hosts)
	leader := cluster.Leader(t, "crash.work")
	begun := time.Now()
	cluster.Cut(t, leader)
	h.flowsAgain(t, begun, "leader cut off")
	pauseFor(t, 20*time.Second) // longer than the cluster takes to notice
	h.flows(t)
	begun = time.Now()
	cluster.Heal(t, leader)
	h.flowsAgain(t, begun, "leader back on the network")
	cluster.CompleteOrRestart(t, "crash.work", leader)
	h.patience = afterLostLeader
	t.Logf("all members online %s after the network was", time.Since(begun).Round(time.Millisecond))
	h.flows(t)
	h.finish(t)
}

// TestClusterRollingRestart restarts one node after the other, as an upgrade does, behind a load balancer.
func TestClusterRollingRestart(t *testing.T) {
	cluster := testkit.PrivateCluster(t)
	h := newClusterHarness(t, cluster, cluster.URL)
	for node := 1; node <= 3; node++ {
		begun := time.Now()
		cluster.Stop(t, node)
		h.flowsAgain(t, begun, "node stopped")
		cluster.Start(t, node)
		cluster.Complete(t, "crash.work")
		cluster.Complete(t, "crash.tap")
		h.flows(t)
	}
	h.finish(t)
}

func newClusterHarness(t *testing.T, cluster *testkit.Cluster, amqpURL string) *harness {
	t.Helper()
	h := newHarnessBy(t, newSeed(t), testkit.Database(t), cluster.AMQP, amqpURL)
	cluster.Complete(t, "crash.work")
	h.load.begin(t.Context(), 2)
	h.flows(t)
	return h
}

// flowsAgain waits until messages flow and tells how long that took.
func (h *harness) flowsAgain(t *testing.T, since time.Time, what string) {
	t.Helper()
	h.flows(t)
	t.Logf("%s: messages flow within %s", what, time.Since(since).Round(time.Millisecond))
}
