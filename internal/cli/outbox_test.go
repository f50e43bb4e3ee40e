package cli_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/surefoot-mq/surefoot/internal/cli"
	"github.com/surefoot-mq/surefoot/internal/testkit"
	"github.com/surefoot-mq/surefoot/relay"
)

// outboxOf returns a function that runs `surefoot outbox` on a schema with the given stdin.
func outboxOf(t *testing.T, db testkit.DB) func(stdin string, args ...string) result {
	t.Helper()
	return func(stdin string, args ...string) result {
		t.Helper()
		e := env("")
		e.Stdin = strings.NewReader(stdin)
		e.Environ = []string{"SUREFOOT_DATABASE_URL=" + db.URL, "SUREFOOT_SCHEMA=" + db.Schema}
		return run(t, e, append([]string{"outbox"}, args...)...)
	}
}

// payloads returns what the outbox holds, in order.
func payloads(t *testing.T, db testkit.DB) []string {
	t.Helper()
	rows, err := db.Pool.Query(t.Context(), `SELECT convert_from(payload, 'UTF8') FROM `+db.Schema+`.outbox ORDER BY id`)
	require.NoError(t, err)
	defer rows.Close()
	all := []string{}
	for rows.Next() {
		var text string
		require.NoError(t, rows.Scan(&text))
		all = append(all, text)
	}
	require.NoError(t, rows.Err())
	return all
}

// audited returns the audit as "who action outcome reason" per entry.
func audited(t *testing.T, db testkit.DB) []string {
	t.Helper()
	rows, err := db.Pool.Query(t.Context(), `SELECT concat_ws('|', who, action, message_id, outcome, reason) FROM `+db.Schema+`.audit ORDER BY id`)
	require.NoError(t, err)
	defer rows.Close()
	all := []string{}
	for rows.Next() {
		var text string
		require.NoError(t, rows.Scan(&text))
		all = append(all, text)
	}
	require.NoError(t, rows.Err())
	return all
}

func TestOutboxAddKeepsPayloadsByteForByte(t *testing.T) {
	t.Parallel()
	db := testkit.Database(t)
	want := []string{`{"z": 1, "a":12345678901234567890.10,  "z":2}`, `null`, `"\u00e4\/"`, `[1e400]`, "\u00e4\x01"}
	input := "\xef\xbb\xbf" + `{"type":"a","payload":` + want[0] + ` }` + "\r\n\n  \n" +
		`{"payload":null,"type":"a"}` + "\n" + `{"type":"a","payload": "\u00e4\/"}` + "\n" + `{"type":"a","payload":[1e400]}` + "\n" +
		`{"type":"a","payload_base64":"w6QB","key":"k","headers":{"n":9223372036854775807},"occurred_at":"2026-01-02T03:04:05.5+01:00"}`
	got := outboxOf(t, db)(input, "add", "-o", "json")
	require.Zero(t, got.code, got.stderr)
	var told struct {
		Lines, Enqueued, Known int
		IDs                    []string
	}
	require.NoError(t, json.Unmarshal([]byte(got.stdout), &told))
	require.Equal(t, []int{5, 5, 0, 5}, []int{told.Lines, told.Enqueued, told.Known, len(told.IDs)})
	require.Equal(t, want, payloads(t, db))
	require.Equal(t, []string{"ann@box|outbox add||5 enqueued|"}, audited(t, db))
}

// Lines are read ahead while earlier ones are checked: none may be overwritten by a later one.
func TestOutboxAddOfManyLinesMixesNothingUp(t *testing.T) {
	t.Parallel()
	db := testkit.Database(t)
	var input strings.Builder
	var want []string
	for i := range 3000 {
		want = append(want, fmt.Sprintf(`"%d %s"`, i, strings.Repeat(string(rune('a'+i%26)), 300)))
		fmt.Fprintf(&input, `{"type":"a","payload":%s}`+"\n", want[i])
	}
	got := outboxOf(t, db)(input.String(), "add")
	require.Zero(t, got.code, got.stderr)
	require.Equal(t, want, payloads(t, db))
}

func TestOutboxAddNamesEveryFaultAndWritesNothing(t *testing.T) {
	t.Parallel()
	db := testkit.Database(t)
	good := `{"type":"a","payload":{}}` + "\n"
	// Good lines first, more than a batch, so that something was written when the fault is found.
	input := strings.Repeat(good, 1200) +
		`{"type":"a","payload":{"secret":1}` + "\n" + `{"type":"a","payloda":{}}` + "\n" + good + `{"payload":{}}` + "\n" +
		`{"type":"a"}` + "\n" + `[]` + "\n" + `{"type":"a","payload":1,"payload_base64":""}` + "\n" + `{"type":"a","type":"b","payload":1}` + "\n" +
		`{"type":1,"payload":1}` + "\n" + `{"type":"a","payload":1} {}` + "\n" + `{"type":"a","payload":"` + "\xff" + `"}` + "\n" +
		`{"type":"a","payload_base64":"*"}` + "\n" + `{"type":"a","payload":1,"headers":{"x-death":1}}` + "\n" +
		`{"type":"a","payload":1,"occurred_at":"noon"}` + "\n" + `{"Type":"a","payload":1}` + "\n" + `{"type":"a","payload":1,"key":"` + strings.Repeat("k", 256) + `"}`
	got := outboxOf(t, db)(input, "add")
	require.Equal(t, cli.ExitUsage, got.code)
	require.Empty(t, got.stdout)
	for _, want := range []string{
		"nothing was enqueued", "line 1201: is broken", `line 1202: has the unknown member "payloda"`, `line 1204: invalid message (id "", type ""): Type is empty`,
		"line 1205: needs one of payload", "line 1206: is not a JSON object", "line 1207: needs one of", `line 1208: has the member "type" twice`,
		"line 1209: type must be a text", "line 1210: has something behind", "line 1211: is not valid UTF-8", "line 1212: payload_base64 is not base64",
		`line 1213: headers contain "x-death"`, "line 1214: occurred_at must be a time", `line 1215: has the unknown member "Type"`, "line 1216: invalid message",
	} {
		require.Contains(t, got.stderr, want)
	}
	require.NotContains(t, got.stderr, "line 1203")
	require.NotContains(t, got.stderr, "secret", "payloads are not for logs")
	require.Empty(t, payloads(t, db))
	require.Empty(t, audited(t, db))
}

func TestOutboxAddBoundsTheListOfFaults(t *testing.T) {
	t.Parallel()
	db := testkit.Database(t)
	got := outboxOf(t, db)(strings.Repeat("{}\n", 120), "add")
	require.Equal(t, cli.ExitUsage, got.code)
	require.Contains(t, got.stderr, "line 20: ")
	require.NotContains(t, got.stderr, "line 21: ")
	require.Contains(t, got.stderr, "and 100 more lines")
}

func TestOutboxAddDryRun(t *testing.T) {
	t.Parallel()
	e := env("")
	e.Stdin = strings.NewReader(`{"type":"a","payload":{}}` + "\n{}\n")
	got := run(t, e, "outbox", "add", "--dry-run")
	require.Equal(t, cli.ExitUsage, got.code, "no database is needed, and the fault is found")
	require.Contains(t, got.stderr, "line 2: ")

	db := testkit.Database(t)
	got = outboxOf(t, db)(`{"type":"a","payload":{}}`, "add", "--dry-run", "-o", "json")
	require.Zero(t, got.code)
	require.JSONEq(t, `{"lines":1,"enqueued":0,"known":0,"ids":[],"more_ids":0}`, got.stdout)
	require.Contains(t, got.stderr, "1 line checked and right; nothing was enqueued")
	require.Empty(t, payloads(t, db))
}

func TestOutboxAddOnceAndLockKeysFromAFile(t *testing.T) {
	t.Parallel()
	db := testkit.Database(t)
	file := filepath.Join(t.TempDir(), "in.jsonl")
	var lines strings.Builder
	for i := range 1500 {
		fmt.Fprintf(&lines, `{"id":"%d","type":"a","key":"k%d","payload":%d}`+"\n", i, i%7, i)
	}
	require.NoError(t, os.WriteFile(file, []byte(lines.String()+`{"id":"3","type":"a","payload":"again"}`), 0o600))
	add := func() result { return outboxOf(t, db)("", "add", "-F", file, "--once", "--lock-keys", "-o", "jsonl") }
	require.Contains(t, add().stdout, `{"lines":1501,"enqueued":1500,"known":1,"ids":["0","1",`)
	require.Contains(t, add().stdout, `{"lines":1501,"enqueued":0,"known":1501,"ids":["0","1",`)
	got := payloads(t, db)
	require.Len(t, got, 1500)
	require.Equal(t, "1499", got[1499], "in the order of the lines")

	noID := outboxOf(t, db)(`{"type":"a","payload":1}`, "add", "--once")
	require.Equal(t, cli.ExitUsage, noID.code)
	require.Contains(t, noID.stderr, "line 1: has no id")
	missing := outboxOf(t, db)("", "add", "-F", file+".not")
	require.Equal(t, cli.ExitUsage, missing.code)
	empty := outboxOf(t, db)("", "add", "-o", "json")
	require.Zero(t, empty.code)
	require.JSONEq(t, `{"lines":0,"enqueued":0,"known":0,"ids":[],"more_ids":0}`, empty.stdout)
	require.Equal(t, "the input is empty; nothing was enqueued\n", empty.stderr)
}

func TestOutboxAddTellsTheIDs(t *testing.T) {
	t.Parallel()
	db := testkit.Database(t)
	box := outboxOf(t, db)
	input := strings.Repeat(`{"type":"a","payload":{}}`+"\n", 600) + `{"type":"a","id":"mine","payload":{}}`
	got := box(input, "add", "-o", "name")
	require.Zero(t, got.code, got.stderr)
	ids := strings.Fields(got.stdout)
	require.Len(t, ids, 601)
	require.Equal(t, "mine", ids[600])
	shown := box("", "show", ids[599], "-o", "name")
	require.Equal(t, ids[599]+"\n", shown.stdout, shown.stderr)
	require.Regexp(t, `(?m)^ids +(\S+, ){4}\S+ and 596 more$`, box(input, "add").stdout)
	require.Regexp(t, `(?m)^ids +\S{36}$`, box(`{"type":"a","payload":{}}`, "add").stdout)
}

// A role with the rights that docs/sql.md names for the command, and no others.
func TestOutboxAddNeedsNoMoreThanTheDocumentedRights(t *testing.T) {
	t.Parallel()
	db := testkit.Database(t)
	role := testkit.Name("r")
	exec := func(sql string) {
		t.Helper()
		_, err := db.Pool.Exec(context.WithoutCancel(t.Context()), sql)
		require.NoError(t, err, sql)
	}
	exec(`CREATE ROLE ` + role + ` LOGIN PASSWORD 'hunter2'`)
	t.Cleanup(func() { exec(`DROP OWNED BY ` + role + ` CASCADE`); exec(`DROP ROLE ` + role) })
	as := db
	u, err := url.Parse(db.URL)
	require.NoError(t, err)
	u.User = url.UserPassword(role, "hunter2")
	as.URL = u.String()
	doc, err := os.ReadFile("../../docs/sql.md")
	require.NoError(t, err)
	grants := regexp.MustCompile(`(?m)^GRANT .*;$`).FindAllString(string(doc), -1)
	require.Len(t, grants, 4)
	for _, grant := range grants {
		got := outboxOf(t, as)(`{"type":"a","payload":{}}`, "add")
		require.Equal(t, cli.ExitDenied, got.code, got.stderr)
		require.Contains(t, got.stderr, "`surefoot outbox add --help`")
		exec(strings.NewReplacer("SCHEMA surefoot", "SCHEMA "+db.Schema, "surefoot.", db.Schema+".", "TO app", "TO "+role).Replace(grant))
	}
	got := outboxOf(t, as)(`{"type":"a","payload":{}}`+"\n"+`{"type":"a","payload":{}}`, "add", "--once=false")
	require.Zero(t, got.code, got.stderr)
	require.Len(t, payloads(t, db), 2)
}

func TestOutboxAddOfALineThatIsTooLong(t *testing.T) {
	t.Parallel()
	db := testkit.Database(t)
	e := env("")
	e.Stdin = io.MultiReader(strings.NewReader(`{"type":"a","payload":1}`+"\n"), io.LimitReader(endless{}, 40<<20))
	e.Environ = []string{"SUREFOOT_DATABASE_URL=" + db.URL, "SUREFOOT_SCHEMA=" + db.Schema}
	got := run(t, e, "outbox", "add")
	require.Equal(t, cli.ExitUsage, got.code)
	require.Contains(t, got.stderr, "line 2 is longer than")
	require.Empty(t, payloads(t, db))
}

type endless struct{}

func (endless) Read(p []byte) (int, error) {
	for i := range p {
		p[i] = 'x'
	}
	return len(p), nil
}

// A pipe that never ends does not keep the command from stopping, and what was read before is not written.
func TestOutboxAddInterrupted(t *testing.T) {
	t.Parallel()
	for name, args := range map[string][]string{"add": nil, "dry run": {"--dry-run"}} {
		t.Run(name, func(t *testing.T) { t.Parallel(); interruptAdd(t, args...) })
	}
}

func interruptAdd(t *testing.T, args ...string) {
	t.Helper()
	db := testkit.Database(t)
	in, feed := io.Pipe()
	defer feed.Close()
	ctx, cancel := context.WithCancel(t.Context())
	e := env("")
	e.Stdin, e.Stdout, e.Stderr = in, io.Discard, io.Discard
	e.Environ = []string{"SUREFOOT_DATABASE_URL=" + db.URL, "SUREFOOT_SCHEMA=" + db.Schema}
	code := make(chan int, 1)
	go func() { code <- cli.Main(ctx, append([]string{"outbox", "add"}, args...), e) }()
	for range 1001 {
		_, err := io.WriteString(feed, `{"type":"a","payload":1}`+"\n")
		require.NoError(t, err)
	}
	cancel()
	select {
	case got := <-code:
		require.Equal(t, cli.ExitInterrupted, got)
	case <-time.After(20 * time.Second):
		t.Fatal("the command did not stop")
	}
	require.Empty(t, payloads(t, db))
}

// poison enqueues a row that no broker takes: the SQL function looks only at the first level of headers.
func poison(t *testing.T, db testkit.DB, id, key string) {
	t.Helper()
	_, err := db.Pool.Exec(t.Context(), `SELECT `+db.Schema+`.enqueue('item.bad', '{"card": "4111"}', key => $1, message_id => $2,
		headers => '{"n": 99999999999999999999}')`, key, id)
	require.NoError(t, err)
}

// parked moves rows to the parked table as a relay would, for tests without one.
func park(t *testing.T, db testkit.DB, id, state string) {
	t.Helper()
	tag, err := db.Pool.Exec(t.Context(), `WITH moved AS (DELETE FROM `+db.Schema+`.outbox WHERE message_id = $1 RETURNING *)
		INSERT INTO `+db.Schema+`.outbox_parked SELECT moved.*, $2, 3, 'refused', E'bad \x1b[31m header', clock_timestamp(), clock_timestamp(), NULL FROM moved`, id, state)
	require.NoError(t, err)
	require.EqualValues(t, 1, tag.RowsAffected())
}

func TestOutboxLsAndShow(t *testing.T) {
	t.Parallel()
	db := testkit.Database(t)
	box := outboxOf(t, db)
	got := box("", "ls")
	require.Equal(t, result{0, "", "0 pending; parked: 0 retry, 0 dead; no relay is running: start one with `surefoot relay run`\nno rows are parked\n"}, got)
	require.Equal(t, "[]\n", box("", "ls", "-o", "json").stdout)
	poison(t, db, "dead-1", "k1")
	poison(t, db, "retry-1", "k2")
	park(t, db, "dead-1", "dead")
	park(t, db, "retry-1", "retry")
	require.Zero(t, box(`{"id":"p\u001b[2J","type":"ok","payload":{"a":"\u001b"},"headers":{"x":1}}`, "add").code)

	got = box("", "ls")
	require.Zero(t, got.code)
	require.Regexp(t, `^1 pending, the oldest for .*s; parked: 1 retry, 1 dead; no relay`, got.stderr)
	require.Regexp(t, `(?m)^dead-1 +item.bad +k1 +dead +3 +\S+ +- +refused +bad \\x1b\[31m header$`, got.stdout)
	require.NotContains(t, got.stdout+got.stderr, "\x1b")
	require.Equal(t, "dead-1\n", box("", "ls", "--state", "dead", "-o", "name").stdout)
	require.Equal(t, "retry-1\n", box("", "ls", "--key", "k2", "-o", "name").stdout)
	require.Empty(t, box("", "ls", "--type", "other", "-o", "name").stdout)
	limited := box("", "ls", "--limit", "1", "-o", "jsonl")
	require.Equal(t, 1, strings.Count(limited.stdout, "\n"))
	require.Contains(t, limited.stderr, "limit of 1")
	require.Equal(t, cli.ExitUsage, box("", "ls", "--state", "ded").code)
	require.Empty(t, box("", "ls", "--state", "waiting", "-o", "name").stdout)
	require.Contains(t, box("", "ls", "--state", "waiting").stderr, "no rows wait for anything but their turn", "one is pending")
	got = box("", "ls", "--state", "pending")
	require.Zero(t, got.code, got.stderr)
	require.Regexp(t, `(?m)^p\\x1b\[2J +ok +- +pending +0 +\S+ +- +its turn +-$`, got.stdout)
	require.Equal(t, cli.ExitUsage, box("", "retry", "--state", "pending", "--yes").code)
	require.Equal(t, cli.ExitUsage, box("", "ls", "--limit", "0").code)

	shown := box("", "show", "dead-1")
	require.Zero(t, shown.code, shown.stderr)
	require.Regexp(t, `(?m)^state +dead$`, shown.stdout)
	require.Regexp(t, `(?m)^headers +cannot be read: .*64 signed bits`, shown.stdout)
	require.Regexp(t, `(?m)^payload +16 bytes, text: \{"card": "4111"\}$`, shown.stdout)
	pending := box("", "show", "p\x1b[2J", "-o", "json")
	require.Zero(t, pending.code)
	require.NotContains(t, pending.stdout, "\x1b")
	var rows []map[string]any
	require.NoError(t, json.Unmarshal([]byte(pending.stdout), &rows))
	require.Equal(t, "pending", rows[0]["state"])
	require.Nil(t, rows[0]["parked"])
	none := box("", "show", "nothing")
	require.Equal(t, cli.ExitFailed, none.code)
	require.Contains(t, none.stderr, "is not in the outbox")
}

func TestOutboxActsThatAreRefusedOrOnlyLookedAt(t *testing.T) {
	t.Parallel()
	db := testkit.Database(t)
	box := outboxOf(t, db)
	for range 2 {
		id := testkit.Name("id")
		poison(t, db, id, "k")
		park(t, db, id, "dead")
	}
	for name, tt := range map[string]struct {
		args []string
		code int
		want string
	}{
		"no choice":      {[]string{"retry", "--yes"}, cli.ExitUsage, "retry needs rows (ids, --state, --key or --type)"},
		"no reason":      {[]string{"discard", "--state", "dead", "--yes"}, cli.ExitUsage, "discard needs --reason"},
		"blank reason":   {[]string{"discard", "--state", "dead", "--yes", "--reason", " \t"}, cli.ExitUsage, "discard needs --reason"},
		"hostile reason": {[]string{"discard", "--state", "dead", "--yes", "--reason", "\x1b[2J"}, cli.ExitUsage, "plain text"},
		"no terminal":    {[]string{"retry", "--state", "dead"}, cli.ExitUsage, "retry 2 parked rows of the outbox " + db.Schema + "?"},
		"over the limit": {[]string{"retry", "--state", "dead", "--limit", "1", "--yes"}, cli.ExitUsage, "more than 1 rows match"},
		"unknown id":     {[]string{"retry", "nothing", "--yes"}, cli.ExitFailed, "none of these messages is parked"},
		"unknown ids":    {[]string{"discard", "nothing", "--reason", "x", "--yes"}, cli.ExitFailed, "parked or waits for a stopped route"},
		"retry stopped":  {[]string{"retry", "--state", "stopped", "--yes"}, cli.ExitUsage, "tried again by themselves"},
		"odd state":      {[]string{"discard", "--state", "pending", "--reason", "x"}, cli.ExitUsage, "retry, dead or stopped"},
		"narrow routes":  {[]string{"ls", "--routes", "--type", "a"}, cli.ExitUsage, "--routes cannot be narrowed"},
		"nothing":        {[]string{"retry", "--state", "retry", "--yes"}, cli.ExitDone, "nothing to do"},
		"negative wait":  {[]string{"retry", "--state", "retry", "--yes", "--wait", "-1s"}, cli.ExitUsage, "--wait"},
		"dry run":        {[]string{"discard", "--state", "dead", "--reason", "x", "--dry-run"}, cli.ExitDone, "would discard 2 rows"},
	} {
		got := box("", tt.args...)
		require.Equal(t, tt.code, got.code, "%s: %s", name, got.stderr)
		require.Contains(t, got.stderr, tt.want, name)
	}
	var requests int
	require.NoError(t, db.Pool.QueryRow(t.Context(), `SELECT count(*) FROM `+db.Schema+`.outbox_requests`).Scan(&requests))
	require.Zero(t, requests)
}

func TestOutboxActWithoutARelaySaysSo(t *testing.T) {
	t.Parallel()
	db := testkit.Database(t)
	poison(t, db, "bad", "k")
	park(t, db, "bad", "dead")
	began := time.Now()
	got := outboxOf(t, db)("", "retry", "bad", "--yes", "-o", "json", "--wait", "20s")
	require.Less(t, time.Since(began), 15*time.Second, "nobody would answer, so it does not wait")
	require.Equal(t, cli.ExitPartly, got.code)
	require.Contains(t, got.stderr, "no relay is running: what is written, 1 request, will be carried out")
	require.Contains(t, got.stdout, `"state": "pending"`)
}

// The whole way with a real relay: a bad row dies, holds back its key, is retried in vain, and is discarded; then
// the rest of its key is published.
func TestOutboxActsAreCarriedOutByARelay(t *testing.T) {
	t.Parallel()
	db, broker := testkit.Database(t), testkit.Broker(t)
	conn, err := amqp.Dial(broker.URL)
	require.NoError(t, err)
	defer conn.Close()
	channel, err := conn.Channel()
	require.NoError(t, err)
	require.NoError(t, channel.ExchangeDeclare("ex", "topic", true, false, false, false, nil))
	queue, err := channel.QueueDeclare("q", true, false, false, false, nil)
	require.NoError(t, err)
	require.NoError(t, channel.QueueBind(queue.Name, "#", "ex", false, nil))
	box := outboxOf(t, db)
	poison(t, db, "bad", "k")
	require.Zero(t, box(`{"id":"behind","type":"item.good","key":"k","payload":1}`, "add").code)

	r, err := relay.New(relay.Options{Pool: db.Pool, Schema: db.Schema, AMQPURL: broker.URL, Exchange: "ex", Attempts: 2, Backoff: 10 * time.Millisecond})
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- r.Run(ctx) }()
	defer func() { cancel(); require.NoError(t, <-done) }()

	isDead := func() bool { return box("", "ls", "--state", "dead", "-o", "name").stdout == "bad\n" }
	testkit.Eventually(t, 20*time.Second, "the bad row to die", isDead)
	retry := box("", "retry", "bad", "--yes", "-o", "json")
	require.Zero(t, retry.code, retry.stderr)
	require.Contains(t, retry.stdout, `"state": "done"`)
	testkit.Eventually(t, 20*time.Second, "it to die again", isDead)
	require.Equal(t, []string{"behind\n"}, []string{box("", "show", "behind", "-o", "name").stdout}, "strict: the key waits")

	discard := box("", "discard", "--state", "dead", "--key", "k", "--reason", "never valid", "--yes", "-o", "name")
	require.Zero(t, discard.code, discard.stderr)
	require.Equal(t, "bad\n", discard.stdout)
	testkit.Eventually(t, 20*time.Second, "the rest of the key", func() bool {
		got, ok, err := channel.Get("q", true)
		require.NoError(t, err)
		return ok && got.MessageId == "behind"
	})
	require.Equal(t, []string{
		"ann@box|outbox add||1 enqueued|",
		"ann@box|outbox retry|bad|done: will be published again|",
		"ann@box|outbox discard|bad|done: discarded|never valid",
	}, audited(t, db))
}

// A typo in a type: its route is stopped, seen by ls and show, and its row is discarded; what waits behind it follows.
func TestOutboxRowsOfAStoppedRoute(t *testing.T) {
	t.Parallel()
	db, broker := testkit.Database(t), testkit.Broker(t)
	conn, err := amqp.Dial(broker.URL)
	require.NoError(t, err)
	defer conn.Close()
	channel, err := conn.Channel()
	require.NoError(t, err)
	require.NoError(t, channel.ExchangeDeclare("ex", "topic", true, false, false, false, nil))
	queue, err := channel.QueueDeclare("q", true, false, false, false, nil)
	require.NoError(t, err)
	require.NoError(t, channel.QueueBind(queue.Name, "order.#", "ex", false, nil))
	box := outboxOf(t, db)
	add := box(`{"id":"typo","type":"odrer.created","key":"k","payload":1}`+"\n"+`{"id":"behind","type":"order.paid","key":"k","payload":2}`+"\n"+
		`{"id":"typo-2","type":"odrer.created","payload":3}`+"\n"+`{"id":"lost","type":"a","exchange":"nowhere","payload":3}`, "add")
	require.Zero(t, add.code, add.stderr)
	require.Contains(t, box("", "show", "typo").stdout, "no relay is running")
	require.Contains(t, box("", "ls", "--routes").stderr, "no route is stopped")

	r, err := relay.New(relay.Options{Pool: db.Pool, Schema: db.Schema, AMQPURL: broker.URL, Exchange: "ex"})
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- r.Run(ctx) }()
	defer func() { cancel(); require.NoError(t, <-done) }()
	testkit.Eventually(t, 20*time.Second, "the routes to be told of", func() bool {
		return strings.Count(box("", "ls", "--routes", "-o", "jsonl").stdout, "\n") == 2 &&
			strings.Count(box("", "ls", "--state", "stopped", "-o", "name").stdout, "\n") == 3
	})
	routes := box("", "ls", "--routes").stdout
	require.Regexp(t, `(?m)^ex +odrer.created +2 +\S+Z +.*no queue is bound`, routes)
	require.Regexp(t, `(?m)^nowhere +\(all\) +1 +\S+Z +.*404`, routes)
	require.Regexp(t, `(?m)^stopped: exchange "ex", routing key "odrer.created": 2 waiting since \S+Z: .*no queue`, box("", "ls").stderr)
	require.Regexp(t, `(?m)^waits for +its route is stopped since \S+Z: .*no queue`, box("", "show", "typo").stdout)
	require.Regexp(t, `(?m)^waits for +message typo of its key comes first, whose route is stopped`, box("", "show", "behind").stdout)
	require.Regexp(t, `(?m)^waits for +its route is stopped`, box("", "show", "lost").stdout)

	refused := box("", "discard", "behind", "--reason", "x", "--yes")
	require.Equal(t, cli.ExitFailed, refused.code)
	discard := box("", "discard", "typo", "--reason", "wrong type", "--yes", "-o", "json")
	require.Zero(t, discard.code, discard.stderr)
	require.Contains(t, discard.stdout, `"outcome": "discarded while its route was stopped"`)
	testkit.Eventually(t, 20*time.Second, "the rest of the key", func() bool {
		got, ok, err := channel.Get("q", true)
		require.NoError(t, err)
		return ok && got.MessageId == "behind"
	})
	require.Contains(t, box("", "discard", "--state", "stopped", "--reason", "x").stderr, "discard 2 rows of the outbox")
	rest := box("", "discard", "--state", "stopped", "--reason", "wrong type", "--yes", "-o", "name")
	require.Zero(t, rest.code, rest.stderr)
	require.ElementsMatch(t, []string{"typo-2", "lost"}, strings.Fields(rest.stdout))
	require.Empty(t, payloads(t, db))
	require.Contains(t, audited(t, db), "ann@box|outbox discard|typo|done: discarded while its route was stopped|wrong type")
	require.Contains(t, audited(t, db), "ann@box|outbox discard|lost|done: discarded while its route was stopped|wrong type")
}
