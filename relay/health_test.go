package relay_test

import (
	"io"
	"strings"
	"sync"
	"testing"

	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"

	"github.com/surefoot-mq/surefoot/internal/testkit"
	"github.com/surefoot-mq/surefoot/relay"
)

// voice is what a relay says of itself, by readiness and in its log.
type voice struct {
	mu    sync.Mutex
	ready error
	log   testkit.Buffer
}

func (v *voice) listen(t *testing.T, o *relay.Options) {
	t.Helper()
	o.Logger = zerolog.New(io.MultiWriter(&v.log, testkit.LogWriter(t)))
	o.Ready = func(err error) {
		v.mu.Lock()
		defer v.mu.Unlock()
		v.ready = err
	}
}

// says is the reason why it is not ready; empty: it is.
func (v *voice) says() string {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.ready == nil {
		return ""
	}
	return v.ready.Error()
}

// logged counts the lines with a text.
func (v *voice) logged(text string) int {
	return strings.Count(v.log.String(), text)
}

func TestAnAlarmOfTheBrokerIsToldOf(t *testing.T) {
	t.Parallel()
	broker := testkit.PrivateBroker(t)
	w := newWorldOn(t, testkit.Database(t), broker.AMQP)
	w.topology()
	o := w.options()
	var v voice
	v.listen(t, &o)
	w.start(o)
	w.enqueue(msg("k", 1))
	w.settled(1)
	broker.MemoryAlarm(t, true)
	w.enqueue(msg("k", 2))
	w.wait("readiness to tell of the alarm", func() bool { return strings.Contains(v.says(), "the broker takes no messages: low on memory") })
	w.wait("a line in the log", func() bool { return v.logged(`"publishing waits"`) == 1 })
	broker.MemoryAlarm(t, false)
	w.settled(2)
	w.wait("readiness", func() bool { return v.says() == "" })
	w.wait("a line that it is over", func() bool { return v.logged(`"publishing goes on"`) == 1 })
	require.Equal(t, 1, v.logged(`"publishing waits"`), "one line, not one per look")
}

// What only readiness knew of shall be in the log too: here, that rows cannot be settled.
func TestWhatIsWaitedForIsLogged(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.topology()
	o := w.options()
	var v voice
	v.listen(t, &o)
	w.start(o)
	w.exec("CREATE FUNCTION " + w.db.Schema + ".deny() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE 'not with me'; END $$")
	w.exec("CREATE TRIGGER deny BEFORE DELETE ON " + w.db.Schema + ".outbox FOR EACH ROW EXECUTE FUNCTION " + w.db.Schema + ".deny()")
	for k := range 50 {
		w.enqueue(msg(string(rune('a'+k)), 1))
	}
	w.wait("a line in the log", func() bool { return v.logged(`"publishing waits"`) == 1 })
	require.Contains(t, v.says(), "settle (shards 0, 1, 2, 3, 4, 5, 6, 7): settle: ERROR: not with me", "one reason, once")
	w.exec("DROP TRIGGER deny ON " + w.db.Schema + ".outbox")
	w.settled(50)
	w.wait("a line that it is over", func() bool { return v.logged(`"publishing goes on"`) == 1 })
}
