package console_test

import (
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/surefoot-mq/surefoot/internal/console"
	"github.com/surefoot-mq/surefoot/internal/testkit"
)

// incident leaves what an on-call operator finds: three causes, one of them grave. What fails for the first of them is mended by the switch
// that is returned.
func (s *stage) incident() (mended *atomic.Bool) {
	s.Helper()
	mended = &atomic.Bool{}
	s.consume(func(id string) error {
		switch {
		case strings.HasPrefix(id, "pay-1") && !mended.Load():
			return errors.New("payment provider refused order " + id[6:] + ": currency CHF is not enabled")
		case strings.HasPrefix(id, "pay-2"):
			return errors.New("pq: value too long for type character varying(40)")
		case strings.HasPrefix(id, "pay-3"):
			return fmt.Errorf("unknown customer %s", id[6:])
		}
		return nil
	})
	s.send(names("pay-1", 37)...)
	s.send(names("pay-2", 6)...)
	s.send(names("pay-3", 1)...)
	s.send(names("ok", 60)...)
	s.see("/dead", "44 messages with 3 causes")
	s.see("/queues?queue=orders.saga", `queue=orders.saga">44</a>`)
	return mended
}

// From the alert to repaired in one sitting: the overview names it, the group shows why, a plan counts it, the canary proves the
// fix, the ramp brings the rest back.
func TestBrowserTheWholeIncident(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	mended := s.incident()
	b := s.openBrowser(1280)

	b.open("/")
	b.see("#calls-h", "1 thing to look at")
	b.see(".calllist", "44 messages died in orders.saga within the last hour")
	b.click(".calllist a")
	b.see("h1", "Dead letters")
	b.see(".group", "payment provider refused order", "37", "currency CHF is not enabled")
	b.click(".group .button:nth-of-type(2)")
	b.see("h1", "Messages in orders.saga.dlq")
	b.see("main .lead", "37 messages, the oldest first")
	b.click("main .actions .primary")
	b.see("h1", "Redrive dead letters")
	require.NotEmpty(t, evaluate[string](b, `document.getElementById("fingerprint").value`), "what was chosen stays chosen")
	b.open("/dead/letters?queue=orders.saga&error-contains=currency")
	b.click("tbody a.id")
	b.see(".timeline", "Attempt 1", "currency CHF is not enabled")
	b.open("/dead")
	b.click(".group .button.primary")
	b.see("h1", "Redrive dead letters")
	mended.Store(true)
	b.fill("#reason", "CHF is enabled since 14:02, OPS-7")
	b.click("main form button.primary")

	b.see("h1", "Plan to redrive orders.saga")
	b.see("#would", "37")
	b.see("#run", "do not match", "7", "Canary", "OPS-7")
	b.click("#start")
	b.see(".notice.ok", "The redrive has started")
	b.see(".lead", "done") // by itself: nobody reloads
	b.see("#processed", "37")
	b.see("#failed", "0")
	b.see(".waves", "Canary", "settled")

	b.open("/dead")
	b.see("#groups .lead", "7 messages with 2 causes")
	require.Contains(t, s.audit(), "dlq redrive|started|ann@test (console, 127.0.0.1)|CHF is enabled since 14:02, OPS-7")
}

// A page keeps itself up to date until it is told not to, and from the next visit on.
func TestBrowserLiveUpdatesCanBePaused(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	b := s.openBrowser(1280)
	b.open("/queues")
	b.see("#pulse-text", "Live")
	s.fill(letter("m1", "order.paid", "permanent", "bad"))
	b.see("table tbody tr td:nth-of-type(7)", "1")
	b.click("#pause")
	b.see("#pulse-text", "Paused")
	require.Equal(t, "true", evaluate[string](b, `document.getElementById("pause").getAttribute("aria-pressed")`))
	made := evaluate[string](b, `document.getElementById("made").getAttribute("datetime")`)
	s.fill(letter("m2", "order.paid", "permanent", "bad"))
	s.see("/queues", `queue=orders.saga">2</a>`) // others see it
	require.Equal(t, "1", evaluate[string](b, `document.querySelector("table tbody tr td:nth-of-type(7)").innerText.trim()`))
	require.Equal(t, made, evaluate[string](b, `document.getElementById("made").getAttribute("datetime")`))
	b.open("/queues")
	b.see("#pulse-text", "Paused")
	s.fill(letter("m3", "order.paid", "permanent", "bad"))
	s.see("/queues", `queue=orders.saga">3</a>`)
	b.click("#pause")
	b.see("#pulse-text", "Live")
	b.see("table tbody tr td:nth-of-type(7)", "3")
	s.stop()
	b.see("#pulse-text", "Out of reach")
}

// A page that could not be made comes by itself once it can.
func TestBrowserHeals(t *testing.T) {
	t.Parallel()
	var database *testkit.FaultyNetwork
	s := newStage(t, func(o *console.Options) {
		database = testkit.Proxy(t, o.Pool.Config().ConnString())
		o.Pool = poolThrough(t, database, o.Pool.Config().ConnString())
	})
	b := s.openBrowser(390)
	database.Cut()
	b.open("/audit")
	b.see("main", "the audit cannot be read", "PostgreSQL does not answer")
	b.fits("/audit")
	database.Heal(t)
	b.see("main", "No entry matches")
}
