package deadletter_test

import (
	"io"
	"net"
	"net/url"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/surefoot-mq/surefoot/deadletter"
)

// A broker under load takes long to give back what a look held, and whoever counts the letters meanwhile would take the rest to be gone.
// Here somebody else is in between, who gives one back every few seconds: longer, all in all, than nothing may come.
func TestALookEndsWhenItsLettersAreBack(t *testing.T) {
	t.Parallel()
	const n = 4
	s := newStage(t)
	letters, ids := batch("m", n, "order.paid")
	s.fill(dlq, letters...)
	ch, err := s.conn.Channel()
	require.NoError(t, err)
	require.NoError(t, ch.Qos(n, 0, false))
	seen := 0
	between := make(chan error, 1)
	count, err := s.letters.Export(t.Context(), deadletter.ExportRequest{Queue: work, Who: "ann@test", Write: func(deadletter.Record) error {
		if seen++; seen < n {
			return nil
		}
		deliveries, err := ch.Consume(dlq, "between", false, false, false, false, nil)
		go func() {
			for range n {
				<-deliveries
			}
			if err := ch.Cancel("between", false); err != nil {
				between <- err
				return
			}
			ticker := time.NewTicker(4 * time.Second)
			defer ticker.Stop()
			for tag := range uint64(n) {
				<-ticker.C
				if err := ch.Nack(tag+1, false, true); err != nil {
					between <- err
					return
				}
			}
			between <- nil
		}()
		return err
	}})
	require.NoError(t, err)
	require.Equal(t, n, count)
	require.Equal(t, n, s.count(dlq), "they are back")
	require.NoError(t, <-between)
	require.ElementsMatch(t, ids, s.ids(dlq))
}

// gate is a way to a service on which answers can be kept back. Nothing is lost on it.
type gate struct {
	listener net.Listener
	upstream string
	closed   sync.Mutex // while answers are kept back
}

func newGate(t testing.TB, upstream string) *gate {
	t.Helper()
	listener, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	g := &gate{listener: listener, upstream: upstream}
	var all sync.WaitGroup
	all.Go(func() {
		for {
			client, err := listener.Accept()
			if err != nil {
				return
			}
			all.Go(func() { g.forward(client) })
		}
	})
	t.Cleanup(func() { _ = listener.Close(); all.Wait() })
	return g
}

// hold keeps answers back for longer than the 10 s that a request may take elsewhere.
func (g *gate) hold() {
	g.closed.Lock()
	time.AfterFunc(12*time.Second, g.closed.Unlock)
}

// behindGate are the stage's dead letters, whose broker is behind a gate.
func (s *stage) behindGate() (*gate, *deadletter.DeadLetters) {
	s.Helper()
	u, err := url.Parse(s.broker.URL)
	require.NoError(s, err)
	g := newGate(s, u.Host)
	u.Host = g.listener.Addr().String()
	return g, s.deadLetters(func(o *deadletter.Options) { o.AMQPURL = u.String() })
}

func (g *gate) forward(client net.Conn) {
	defer client.Close()
	server, err := net.Dial("tcp", g.upstream)
	if err != nil {
		return
	}
	defer server.Close()
	requests := make(chan struct{})
	go func() { defer close(requests); _, _ = io.Copy(server, client); _ = server.Close() }()
	_, _ = io.Copy(answers{client, g}, server)
	_ = client.Close()
	<-requests
}

// answers go through the gate.
type answers struct {
	to   io.Writer
	gate *gate
}

func (a answers) Write(p []byte) (int, error) {
	a.gate.closed.Lock()
	defer a.gate.closed.Unlock()
	return a.to.Write(p)
}

// While the broker takes back hundreds of thousands of letters it answers nothing else, for longer than a request may take elsewhere.
func TestABrokerMayTakeItsTimeToAnswerALook(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	letters, _ := batch("m", 3, "order.paid")
	s.fill(dlq, letters...)
	g, through := s.behindGate()
	seen := 0
	count, err := through.Export(t.Context(), deadletter.ExportRequest{
		Queue: work, Who: "ann@test", Write: func(deadletter.Record) error {
			if seen++; seen == 3 {
				g.hold()
			}
			return nil
		},
	})
	require.NoError(t, err)
	require.Equal(t, 3, count)
	require.Equal(t, 3, s.count(dlq))
}

// The same when the acknowledgements of a redrive are what it takes its time over.
func TestABrokerMayTakeItsTimeToCarryOutAcknowledgements(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	letters, _ := batch("m", 3, "order.paid")
	s.fill(dlq, letters...)
	var g *gate
	held := false
	g, s.letters = s.behindGate()
	result, err := s.redrive(func(r *deadletter.RedriveRequest) {
		r.Max = 2 // the third stays, so that the broker has more to say than that there is none
		r.Progress = func(p deadletter.Progress) {
			if p.Done == 2 && !held {
				held = true
				g.hold()
			}
		}
	})
	require.NoError(t, err)
	require.True(t, held)
	require.Equal(t, 2, result.Done)
	require.Equal(t, 1, s.count(dlq))
	require.Equal(t, 2, s.count(work))
}
