package cli_test

import (
	"encoding/json"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/surefoot-mq/surefoot/internal/cli"
	"github.com/surefoot-mq/surefoot/internal/testkit"
	"github.com/surefoot-mq/surefoot/message"
)

const dlqConfig = `
topology:
  exchange: shop.events
  queues:
    - {name: orders.saga, owner: team-orders, runbook: docs/runbooks/dlq.md}
`

// dlqStage is a vhost with a work queue and its dead-letter queue, and a schema.
type dlqStage struct {
	*testing.T
	db     testkit.DB
	broker testkit.AMQP
	ch     *amqp.Channel
}

func newDLQStage(t *testing.T) *dlqStage {
	t.Helper()
	s := &dlqStage{T: t, db: testkit.Database(t), broker: testkit.Broker(t)}
	conn, err := amqp.Dial(s.broker.URL)
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	s.ch, err = conn.Channel()
	require.NoError(t, err)
	for _, name := range []string{"orders.saga", "orders.saga.dlq"} {
		_, err = s.ch.QueueDeclare(name, true, false, false, false, amqp.Table{
			"x-queue-type": "quorum", "x-delivery-limit": int32(1_000_000),
		})
		require.NoError(t, err)
	}
	return s
}

func (s *dlqStage) letter(id, typ, text string) {
	s.Helper()
	h := amqp.Table{"tenant": "acme"}
	message.SetOrigin(h, message.Origin{Exchange: "shop.events", RoutingKey: typ, Queue: "orders.saga"})
	message.Failure{Class: "transient", Type: "*http.Error", Message: text, Stack: "main.go:1"}.Write(h, 5)
	before := s.depth("orders.saga.dlq")
	require.NoError(s, s.ch.PublishWithContext(s.Context(), "", "orders.saga.dlq", true, false,
		amqp.Publishing{MessageId: id, Type: typ, Headers: h, DeliveryMode: amqp.Persistent, Body: []byte("{\"text\":\"" + text + "\"}")}))
	testkit.Eventually(s, 10*time.Second, "the letter", func() bool { return s.depth("orders.saga.dlq") == before+1 })
}

func (s *dlqStage) depth(queue string) int {
	s.Helper()
	q, err := s.ch.QueueDeclarePassive(queue, true, false, false, false, nil)
	require.NoError(s, err)
	return q.Messages
}

func (s *dlqStage) env() cli.Env {
	e := env(dlqConfig)
	e.Environ = []string{
		"SUREFOOT_DATABASE_URL=" + s.db.URL, "SUREFOOT_SCHEMA=" + s.db.Schema,
		"SUREFOOT_AMQP_URL=" + s.broker.URL, "SUREFOOT_MANAGEMENT_URL=" + s.broker.ManagementURL,
	}
	return e
}

func (s *dlqStage) run(args ...string) result {
	s.Helper()
	return run(s.T, s.env(), append([]string{"dlq"}, args...)...)
}

func TestDLQFromTheCommandLine(t *testing.T) {
	t.Parallel()
	s := newDLQStage(t)
	s.letter("one", "order.paid", "\x1b[31mred\u202e")
	s.letter("two", "order.cancelled", "provider said 503")

	got := s.run("ls", "-o", "json")
	require.Zero(t, got.code, got.stderr)
	var depths []map[string]any
	require.NoError(t, json.Unmarshal([]byte(got.stdout), &depths))
	require.Equal(t, []any{"orders.saga.dlq", 2.0, "team-orders"}, []any{depths[0]["dlq"], depths[0]["letters"], depths[0]["owner"]})

	got = s.run("show", "--queue", "orders.saga")
	require.Zero(t, got.code, got.stderr)
	require.NotContains(t, got.stdout, "\x1b")
	require.NotContains(t, got.stdout, "\u202e")
	require.Contains(t, got.stdout, `\x1b[31mred`)
	require.Contains(t, got.stdout, "header tenant")
	require.Contains(t, got.stdout, "attempt 5")
	for _, format := range []string{"json", "jsonl", "name"} {
		got = s.run("show", "--queue", "orders.saga", "--id", "two", "--payload", "all", "-o", format)
		require.Zero(t, got.code, got.stderr)
		require.Contains(t, got.stdout, "two")
		require.NotContains(t, got.stdout, "one")
	}

	got = s.run("redrive", "--queue", "orders.saga", "--dry-run", "-o", "json")
	require.Zero(t, got.code, got.stderr)
	require.Contains(t, got.stdout, `"done": 2`)
	got = s.run("redrive", "--queue", "orders.saga", "--type", "order.cancelled")
	require.Equal(t, cli.ExitUsage, got.code)
	require.Contains(t, got.stderr, "redrive 1 message of orders.saga.dlq to orders.saga?")
	require.Equal(t, 2, s.depth("orders.saga.dlq"))

	got = s.run("redrive", "--queue", "orders.saga.dlq", "--type", "order.cancelled", "--yes", "--rate", "50/s")
	require.Zero(t, got.code, got.stderr)
	require.Equal(t, []int{1, 1}, []int{s.depth("orders.saga"), s.depth("orders.saga.dlq")})
	require.Contains(t, got.stderr, "reprocessed from DLQ")
	require.Regexp(t, `^run +\S+\nqueue +orders.saga\nfound +2\nredriven +1\nnot matching +1\ntypes +.*\n$`, got.stdout, "and no line about nothing")
	require.NotContains(t, got.stderr, "redriven 1", "the table has said it")

	require.Equal(t, cli.ExitUsage, s.run("discard", "--queue", "orders.saga", "--yes").code)
	got = s.run("discard", "--queue", "orders.saga", "--since", "1h", "--reason", "refunded by hand", "--yes")
	require.Zero(t, got.code, got.stderr)
	require.Zero(t, s.depth("orders.saga.dlq"))
	var reason string
	require.NoError(t, s.db.Pool.QueryRow(t.Context(), "SELECT reason FROM "+s.db.Schema+".audit WHERE outcome = 'discarded'").Scan(&reason))
	require.Equal(t, "refunded by hand", reason)
}

func TestDLQRefusals(t *testing.T) {
	t.Parallel()
	s := newDLQStage(t)
	s.letter("one", "order.paid", "x")
	_, err := s.ch.QueueDelete("orders.saga", false, false, false)
	require.NoError(t, err)
	away := s.env()
	away.Environ = append(away.Environ, "SUREFOOT_AMQP_URL=amqp://guest:guest@127.0.0.1:1/")
	wrong := s.env()
	wrong.Environ = append(wrong.Environ, "SUREFOOT_AMQP_URL="+strings.Replace(s.broker.URL, "://", "://nobody-", 1))
	for name, c := range map[string]struct {
		env  cli.Env
		args []string
		code int
		want string
	}{
		"no queue":       {s.env(), []string{"redrive", "--yes"}, cli.ExitUsage, "--queue is required"},
		"unknown queue":  {s.env(), []string{"redrive", "--queue", "nowhere", "--yes"}, cli.ExitFailed, "no such dead-letter queue: nowhere.dlq"},
		"missing target": {s.env(), []string{"redrive", "--queue", "orders.saga", "--yes"}, cli.ExitFailed, "no such work queue: orders.saga"},
		"bad time":       {s.env(), []string{"show", "--queue", "orders.saga", "--since", "yesterday"}, cli.ExitUsage, "--since"},
		"bad rate":       {s.env(), []string{"redrive", "--queue", "orders.saga", "--rate", "fast"}, cli.ExitUsage, "--rate"},
		"too many":       {s.env(), []string{"show", "--queue", "orders.saga", "--limit", "5000"}, cli.ExitUsage, "1 to 1000"},
		"broker away":    {away, []string{"redrive", "--queue", "orders.saga", "--yes"}, cli.ExitUnreachable, "127.0.0.1:1"},
		"wrong user":     {wrong, []string{"ls"}, cli.ExitDenied, "nobody-"},
		"wrong password": {wrong, []string{"ls"}, cli.ExitDenied, "hint: correct user and password in SUREFOOT_AMQP_URL"},
	} {
		got := run(t, c.env, append([]string{"dlq"}, c.args...)...)
		require.Equal(t, c.code, got.code, "%s: %s", name, got.stderr)
		require.Contains(t, got.stderr, c.want, name)
		require.Empty(t, got.stdout, name)
	}
	require.Equal(t, 1, s.depth("orders.saga.dlq"))
}

// What a program says of its failure is found and shown by its own name, not as a stack.
func TestDLQShowsStandardErrorOfPrograms(t *testing.T) {
	t.Parallel()
	s := newDLQStage(t)
	send := func(id, typ, stack string) {
		h := amqp.Table{}
		message.SetOrigin(h, message.Origin{Exchange: "shop.events", RoutingKey: "order.paid", Queue: "orders.saga"})
		message.Failure{Class: "panic", Type: typ, Message: "panic: boom", Stack: stack}.Write(h, 1)
		before := s.depth("orders.saga.dlq")
		require.NoError(t, s.ch.PublishWithContext(t.Context(), "", "orders.saga.dlq", true, false, amqp.Publishing{MessageId: id, Headers: h}))
		testkit.Eventually(t, 10*time.Second, "the letter", func() bool { return s.depth("orders.saga.dlq") == before+1 })
	}
	send("program", "exit 65", "cannot parse it\n")
	send("panic", "consumer.PanicError", "main.go:1 cannot parse it\n")
	got := s.run("show", "--queue", "orders.saga", "--error-contains", "Cannot Parse")
	require.Zero(t, got.code, got.stderr)
	require.Contains(t, got.stdout, "stderr:\ncannot parse it")
	require.NotContains(t, got.stdout, "main.go:1", "a stack is not searched")
	require.NotContains(t, got.stdout, "stack:")
	got = s.run("show", "--queue", "orders.saga", "--id", "panic")
	require.Contains(t, got.stdout, "stack:\nmain.go:1")
	require.Regexp(t, `(?m)^error +panic: boom$`, got.stdout)
	got = s.run("show", "--queue", "orders.saga", "--id", "program", "-o", "json")
	require.Contains(t, got.stdout, `"stderr": "cannot parse it\n"`)

	send("endpoint", "http 422", "no such customer")
	got = s.run("show", "--queue", "orders.saga", "--error-contains", "No Such Customer")
	require.Contains(t, got.stdout, "response:\nno such customer")
	got = s.run("show", "--queue", "orders.saga", "--id", "endpoint", "-o", "json")
	require.Contains(t, got.stdout, `"response": "no such customer"`)
	require.NotContains(t, got.stdout, `"stack"`)
}

// A target that fills up in the middle: what fits is moved, the rest stays, and the exit code says so.
func TestDLQRedrivePartly(t *testing.T) {
	t.Parallel()
	s := newDLQStage(t)
	_, err := s.ch.QueueDelete("orders.saga", false, false, false)
	require.NoError(t, err)
	_, err = s.ch.QueueDeclare("orders.saga", true, false, false, false, amqp.Table{
		"x-queue-type": "classic", "x-max-length": int32(2), "x-overflow": "reject-publish",
	})
	require.NoError(t, err)
	for _, id := range []string{"1", "2", "3", "4"} {
		s.letter(id, "order.paid", "x")
	}
	got := s.run("redrive", "--queue", "orders.saga", "--yes", "--rate", "20/s")
	require.Equal(t, cli.ExitPartly, got.code, got.stderr)
	require.Contains(t, got.stderr, "did not take the message")
	require.Equal(t, []int{2, 2}, []int{s.depth("orders.saga"), s.depth("orders.saga.dlq")})
}

// What the runbook says of filters holds.
func TestTheRunbooksFilters(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../../docs/runbooks/dlq.md")
	require.NoError(t, err)
	filters := regexp.MustCompile("(?s)((?:`--[a-z-]+`(?:,| and)?\\s)+)choose messages").FindSubmatch(text)
	require.NotEmpty(t, filters)
	for _, flag := range regexp.MustCompile(`--[a-z-]+`).FindAllString(string(filters[1]), -1) {
		for _, verb := range []string{"ls", "show", "redrive", "discard"} {
			require.Contains(t, run(t, env(""), "dlq", verb, "--help").stdout, flag+" ", "dlq %s", verb)
		}
	}
}

func TestDLQShowTellsOfHeadersThatWereLost(t *testing.T) {
	t.Parallel()
	s := newDLQStage(t)
	h := amqp.Table{"large": strings.Repeat("x", 100_000)}
	message.Failure{Class: "x"}.Write(h, 1)
	require.NoError(t, s.ch.PublishWithContext(t.Context(), "", "orders.saga.dlq", true, false, amqp.Publishing{MessageId: "wide", Headers: h}))
	testkit.Eventually(t, 10*time.Second, "the letter", func() bool { return s.depth("orders.saga.dlq") == 1 })
	got := s.run("show", "--queue", "orders.saga")
	require.Regexp(t, `(?m)^lost headers +1 of the producer's`, got.stdout)
}

func TestDLQListGoesOnBehindAQueueThatCannotBeLookedAt(t *testing.T) {
	t.Parallel()
	s := newDLQStage(t)
	deep := amqp.Table{}
	for range 40 {
		deep = amqp.Table{"n": deep}
	}
	require.NoError(t, s.ch.PublishWithContext(t.Context(), "", "orders.saga.dlq", true, false, amqp.Publishing{Headers: deep}))
	_, err := s.ch.QueueDeclare("zzz.dlq", true, false, false, false, amqp.Table{"x-queue-type": "quorum", "x-delivery-limit": int32(1_000_000)})
	require.NoError(t, err)
	testkit.Eventually(t, 10*time.Second, "the letter", func() bool { return s.depth("orders.saga.dlq") == 1 })
	got := s.run("ls", "--all")
	require.Equal(t, cli.ExitPartly, got.code, got.stderr)
	require.Regexp(t, `(?m)^orders.saga.dlq +1 .*nested more than 32 deep`, got.stdout)
	require.Regexp(t, `(?m)^zzz.dlq +0`, got.stdout)
	require.Contains(t, got.stderr, "orders.saga.dlq")
	got = s.run("show", "--queue", "orders.saga")
	require.Equal(t, cli.ExitFailed, got.code, got.stderr)
	require.Contains(t, got.stderr, "Get messages")
}

// The runbook's script is the same in the runbook's words.
func TestReprocessDLQScript(t *testing.T) {
	t.Parallel()
	s := newDLQStage(t)
	s.letter("one", "order.paid", "x")
	s.letter("two", "order.cancelled", "x")
	script := func(args ...string) (string, int) {
		cmd := exec.CommandContext(t.Context(), "../../scripts/reprocess-dlq", args...)
		cmd.Dir = t.TempDir()
		abs, err := os.Getwd()
		require.NoError(t, err)
		cmd.Path = abs + "/../../scripts/reprocess-dlq"
		cmd.Env = append(os.Environ(), append(s.env().Environ, "SUREFOOT_BIN="+testkit.Binary(t))...)
		out, _ := cmd.CombinedOutput()
		return string(out), cmd.ProcessState.ExitCode()
	}
	out, code := script("--queue", "orders.saga")
	require.Equal(t, 2, code, out)
	out, code = script("--queue", "orders.saga", "--max", "50", "--event-filter", "order.cancelled")
	require.Equal(t, 2, code, out)
	require.Contains(t, out, "give --yes")
	out, code = script("--queue", "orders.saga.dlq", "--max", "50", "--event-filter", "order.cancelled", "--yes")
	require.Zero(t, code, out)
	require.Equal(t, []int{1, 1}, []int{s.depth("orders.saga"), s.depth("orders.saga.dlq")})
	out, code = script("--queue", "orders.saga.dlq", "--max", "50", "--discard", "--reason", "refunded: see ticket 7", "--yes")
	require.Zero(t, code, out)
	require.Zero(t, s.depth("orders.saga.dlq"))
}

func TestDLQGroupsNotesAndChoosing(t *testing.T) {
	t.Parallel()
	s := newDLQStage(t)
	s.letter("one", "order.paid", "order 17 not found")
	s.letter("two", "order.paid", "order 18 not found")
	s.letter("three", "order.paid", "\x1b[31mno route")
	got := s.run("groups")
	require.Zero(t, got.code, got.stderr)
	require.Contains(t, got.stderr, "no dead letters are indexed")
	got = s.run("groups", "--scan", "-o", "json")
	require.Zero(t, got.code, got.stderr)
	var groups []map[string]any
	require.NoError(t, json.Unmarshal([]byte(got.stdout), &groups))
	require.Len(t, groups, 2)
	require.Equal(t, []any{"orders.saga", 2.0}, []any{groups[0]["queue"], groups[0]["messages"]})
	id := s.run("groups", "-o", "name").stdout
	id, _, _ = strings.Cut(id, "\n")

	require.Equal(t, cli.ExitUsage, s.run("note", id, "--yes").code)
	require.Equal(t, cli.ExitUsage, s.run("note", "x", "text", "--yes").code)
	got = s.run("note", id, "ticket 4711")
	require.Zero(t, got.code, "nothing is asked: %s", got.stderr)
	got = s.run("groups", "--queue", "orders.saga.dlq")
	require.Zero(t, got.code, got.stderr)
	require.Contains(t, got.stdout, "ticket 4711")
	require.NotContains(t, got.stdout, "\x1b")
	require.Equal(t, cli.ExitFailed, s.run("note", "99999", "text", "--yes").code)

	fingerprint, _ := groups[0]["fingerprint"].(string)
	got = s.run("ls", "--queue", "orders.saga", "--fingerprint", fingerprint, "-o", "name")
	require.Zero(t, got.code, got.stderr)
	require.Equal(t, "one\ntwo\n", got.stdout)
	got = s.run("ls", "--queue", "orders.saga", "--where", "text=order 18 not found")
	require.Zero(t, got.code, got.stderr)
	require.Contains(t, got.stdout, "two")
	require.NotContains(t, got.stdout, "three")
	require.Equal(t, cli.ExitUsage, s.run("ls", "--queue", "orders.saga", "--where", "text").code)
	require.Equal(t, cli.ExitUsage, s.run("ls", "--where", "text=x").code, "needs a queue")
	require.Equal(t, 3, s.depth("orders.saga.dlq"))
	got = s.run("redrive", "--queue", "orders.saga", "--where", "text=order 18 not found", "--yes")
	require.Zero(t, got.code, got.stderr)
	require.Equal(t, []int{1, 2}, []int{s.depth("orders.saga"), s.depth("orders.saga.dlq")})
}
