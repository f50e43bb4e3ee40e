package relay

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/google/uuid"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/surefoot-mq/surefoot/internal/fault"
	"github.com/surefoot-mq/surefoot/internal/pause"
	"github.com/surefoot-mq/surefoot/internal/rabbit"
)

const (
	// fencePrefix begins the names of all fences: the broker's user needs the configure permission on them.
	fencePrefix = "surefoot.fence."
	// fenceRetry is the wait while a former owner's connection is still there; it goes within some 30 ms of
	// its end.
	fenceRetry = 50 * time.Millisecond
	// openRetry is the wait after a channel could not be opened for another reason.
	openRetry = 250 * time.Millisecond
	// blockedAfter is how long an alarm of the broker may last before readiness tells.
	blockedAfter = 3 * time.Second
)

// link is one broker connection to publish on, kept up while shards use it. Each shard has a channel of its own on it,
// so that what closes a channel stays with the shard that caused it, and holds its fence through it.
type link struct {
	options rabbit.Options
	status  func(error)

	mu      sync.Mutex
	users   int
	conn    *rabbit.Conn
	changed chan struct{} // closed and replaced at every change
}

func newLink(o rabbit.Options, status func(error)) *link {
	return &link{options: o, status: status, changed: make(chan struct{})}
}

// use counts a shard in (1) or out (-1).
func (l *link) use(n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.users += n
	l.signal()
}

func (l *link) signal() {
	close(l.changed)
	l.changed = make(chan struct{})
}

func (l *link) set(conn *rabbit.Conn) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.conn = conn
	l.signal()
}

func (l *link) state() (conn *rabbit.Conn, users int, changed <-chan struct{}) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.conn, l.users, l.changed
}

// run keeps the connection up until ctx ends.
func (l *link) run(ctx context.Context) {
	for ctx.Err() == nil {
		if !l.await(ctx, func(_ *rabbit.Conn, users int) bool { return users > 0 }) {
			return
		}
		session, cancel := context.WithCancel(ctx)
		var idle sync.WaitGroup
		idle.Go(func() {
			l.await(session, func(_ *rabbit.Conn, users int) bool { return users == 0 })
			cancel()
		})
		err := rabbit.Supervise(session, rabbit.SuperviseOptions{
			Options: l.options, BackoffMax: 2 * time.Second, OnState: l.status,
		}, l.session)
		cancel()
		idle.Wait()
		l.status(err)
	}
}

func (l *link) session(ctx context.Context, conn *rabbit.Conn) error {
	if err := tryFence(ctx, conn); err != nil {
		return err
	}
	l.set(conn)
	defer l.set(nil)
	told := false
	for {
		changed := conn.BlockedChanged()
		var late <-chan time.Time
		blocked, alarm := conn.Blocked()
		switch {
		case blocked:
			late = time.After(blockedAfter)
		case told:
			told = false
			l.status(nil)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-conn.Done():
			return conn.Err()
		case <-changed:
		case <-late:
			told = true
			l.status(fmt.Errorf("the broker takes no messages: %s", alarm))
		}
	}
}

// tryFence makes sure that the user may take fences, without which no shard can be published.
func tryFence(ctx context.Context, conn *rabbit.Conn) error {
	name := fencePrefix + "try." + uuid.NewString()
	if err := rabbit.Fence(ctx, conn, name); err != nil {
		return err
	}
	return giveBack(ctx, conn, name)
}

// giveBack gives a fence back.
func giveBack(ctx context.Context, conn *rabbit.Conn, name string) error {
	channel, err := conn.Channel(ctx)
	if err != nil {
		return err
	}
	err = channel.Do(ctx, "give back fence", func(ch *amqp.Channel) error {
		_, err := ch.QueueDelete(name, false, false, false)
		return err
	})
	return errors.Join(err, channel.Close(ctx))
}

// await waits until ok, and reports whether that came before the end of ctx.
func (l *link) await(ctx context.Context, ok func(*rabbit.Conn, int) bool) bool {
	for {
		conn, users, changed := l.state()
		if ok(conn, users) {
			return true
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return false
		}
	}
}

// session is a shard's channel to publish on, with its fence held.
type session struct {
	conn *rabbit.Conn
	pub  *rabbit.Publisher
}

// open returns a session as soon as the connection is up and no former owner's connection holds the fence; the
// reason for waiting goes to status. It fails only when ctx ends.
func (l *link) open(ctx context.Context, fence string, o rabbit.PublisherOptions, status func(error)) (session, error) {
	for {
		if !l.await(ctx, func(conn *rabbit.Conn, _ int) bool { return conn != nil }) {
			return session{}, ctx.Err()
		}
		conn, _, _ := l.state()
		if conn == nil {
			continue
		}
		s, err := openOn(ctx, conn, fence, o)
		if err == nil {
			status(nil)
			return s, nil
		}
		wait := openRetry
		if errors.Is(err, rabbit.ErrFenced) {
			wait = fenceRetry
			err = fmt.Errorf("the fence is held by another connection: of a former owner, or of a relay on a copy of this database (exclusive queues %s*)", strings.TrimRight(fence, "0123456789"))
		}
		status(err)
		if !pause.For(ctx, wait) {
			return session{}, ctx.Err()
		}
	}
}

func openOn(ctx context.Context, conn *rabbit.Conn, fence string, o rabbit.PublisherOptions) (session, error) {
	// A request under way must not be cut off by the shard's end: that would cost its siblings the connection.
	ctx = context.WithoutCancel(ctx)
	if err := rabbit.Fence(ctx, conn, fence); err != nil {
		return session{}, err
	}
	if err := fault.Point("relay.after-fence"); err != nil {
		return session{}, err
	}
	pub, err := conn.Publisher(ctx, o)
	return session{conn, pub}, err
}

// close gives the fence back. What is unconfirmed and must not reach the broker any more goes with the whole
// connection: there is no other way to be sure.
func (s session) close(ctx context.Context, fence string, unconfirmed bool) error {
	if unconfirmed {
		s.conn.Abort(errors.New("relay: shard given up with messages unconfirmed"))
		<-s.pub.Done()
		return nil
	}
	if err := s.pub.Close(ctx); err != nil {
		return fmt.Errorf("close publishing channel: %w", err)
	}
	return giveBack(ctx, s.conn, fence)
}

// lookUp asks whether an exchange is there, on a channel of its own, which a missing one closes.
func (s session) lookUp(ctx context.Context, exchange string) error {
	channel, err := s.conn.Channel(ctx)
	if err != nil {
		return err
	}
	err = channel.Do(ctx, "look for exchange", func(ch *amqp.Channel) error {
		return ch.ExchangeDeclarePassive(exchange, amqp.ExchangeTopic, true, false, false, false, nil)
	})
	if err != nil {
		return err
	}
	return channel.Close(ctx)
}
