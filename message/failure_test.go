package message_test

import (
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/surefoot-mq/surefoot/message"
)

var noon = time.Date(2026, 1, 2, 12, 0, 0, 123456789, time.UTC)

func TestFailureRecordGrowsWithTheAttempts(t *testing.T) {
	t.Parallel()
	h := amqp.Table{"x-tenant": "a"}
	for n := 1; n <= 12; n++ {
		at := noon.Add(time.Duration(n) * time.Minute)
		message.Failure{
			Class: "transient", Type: "*http.Error", Message: fmt.Sprintf("try %d", n), Stack: "stack", LastFailedAt: at, Host: "h", Version: "v1",
		}.Write(h, n)
	}
	f := message.FailureOf(h)
	require.Equal(t, noon.Add(time.Minute), f.FirstFailedAt, "the first time stays")
	require.Equal(t, noon.Add(12*time.Minute), f.LastFailedAt)
	require.Len(t, f.Log, message.MaxAttemptLog)
	require.Equal(t, 3, f.Log[0].Number)
	require.Equal(t, message.Attempt{
		Number: 12, At: f.LastFailedAt, Class: "transient", Type: "*http.Error", Message: "try 12", Host: "h",
	}, f.Log[9])
	require.Equal(t, "a", h["x-tenant"])
	message.Failure{Class: "permanent", Message: "no"}.Write(h, 13)
	require.NotContains(t, h, message.HeaderErrorStack, "a stack of an earlier attempt would mislead")
	require.NoError(t, h.Validate())
}

func TestFailureGolden(t *testing.T) {
	t.Parallel()
	h := amqp.Table{}
	f := message.Failure{
		Class: "panic", Type: "runtime.Error", Message: "order 42: index out of range", Stack: "goroutine 1",
		LastFailedAt: noon, Host: "host", Version: "1.2.3",
	}
	f.Write(h, 1)
	text, err := json.MarshalIndent(h, "", "  ")
	require.NoError(t, err)
	golden(t, "failure.json", append(text, '\n'))
}

func TestFailureIsBounded(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("ü", 10_000)
	h := amqp.Table{}
	message.Failure{Class: long, Type: long, Message: long, Stack: long, Fingerprint: long, Host: long, Version: long}.Write(h, 1)
	f := message.FailureOf(h)
	require.LessOrEqual(t, len(f.Message), message.MaxErrorMessage)
	require.Greater(t, len(f.Message), message.MaxErrorMessage-8)
	require.LessOrEqual(t, len(f.Stack), message.MaxErrorStack)
	require.Greater(t, len(f.Stack), message.MaxErrorStack-8)
	require.Less(t, message.TableSize(h), 12<<10)
}

func TestTheStackGivesWayFirst(t *testing.T) {
	t.Parallel()
	stack := strings.Repeat("s", message.MaxErrorStack)
	filled := func(user int) amqp.Table {
		h := amqp.Table{"user": strings.Repeat("u", user)}
		message.Failure{Class: "panic", Type: "t", Message: strings.Repeat("m", 900), Stack: stack}.Write(h, 1)
		require.LessOrEqual(t, message.TableSize(h), message.MaxHeaders)
		return h
	}
	h := filled(50 << 10)
	require.Contains(t, h, message.HeaderErrorStack)
	require.Contains(t, h, message.HeaderAttemptLog)

	h = filled(56 << 10)
	require.NotContains(t, h, message.HeaderErrorStack)
	require.Contains(t, h, message.HeaderAttemptLog)
	require.Contains(t, h, message.HeaderErrorMessage)

	h = filled(61<<10 - 300)
	require.NotContains(t, h, message.HeaderAttemptLog)
	require.Contains(t, h, message.HeaderErrorMessage)
	require.Contains(t, h, "user")
	require.NotContains(t, h, message.HeaderDropped)

	h = filled(63 << 10)
	require.NotContains(t, h, "user")
	require.Equal(t, int64(1), h[message.HeaderDropped])
	require.Equal(t, "panic", message.FailureOf(h).Class)
}

// What is written beside a failure afterwards must fit too.
func TestFailureLeavesRoom(t *testing.T) {
	t.Parallel()
	for user := 40 << 10; user < 70<<10; user += 511 {
		h := amqp.Table{"user": strings.Repeat("u", user), message.HeaderKey: strings.Repeat("k", 255)}
		message.Failure{Class: "panic", Message: "m", Stack: strings.Repeat("s", 9000)}.Write(h, 1)
		edge := strings.Repeat("o", 255)
		message.SetOrigin(h, message.Origin{Exchange: edge, RoutingKey: edge, Queue: edge})
		for _, name := range []string{message.HeaderAttempts, message.HeaderNotBefore, message.HeaderRedriveCount, message.HeaderEpoch} {
			h[name] = int64(1)
		}
		h[message.HeaderReprocess], h[message.HeaderRedriveRun] = noon.Format(time.RFC3339), message.NewID()
		require.LessOrEqual(t, message.TableSize(h), message.MaxHeaders, "%d bytes of the user's", user)
	}
}

func TestFailureStaysWithinTheLimitWhateverTheHeaders(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		h := hostileHeaders(t)
		f := message.Failure{
			Class: rapid.String().Draw(t, "class"), Type: rapid.String().Draw(t, "type"), Message: rapid.String().Draw(t, "text"),
			Stack: strings.Repeat("s", rapid.IntRange(0, 10_000).Draw(t, "stack")), Host: rapid.String().Draw(t, "host"),
		}
		f.Write(h, rapid.Int().Draw(t, "number"))
		require.LessOrEqual(t, message.TableSize(h), message.MaxHeaders)
		require.NoError(t, h.Validate())
		require.Contains(t, h, message.HeaderErrorClass)
		require.Contains(t, h, message.HeaderLastFailedAt)
	})
}

// hostileHeaders draws headers up to the size of a frame, under names of everybody's.
func hostileHeaders(t *rapid.T) amqp.Table {
	names := rapid.OneOf(rapid.SampledFrom([]string{
		message.HeaderKey, message.HeaderAttemptLog, message.HeaderErrorMessage, message.HeaderErrorStack, message.HeaderDropped,
		message.HeaderRequestID, message.HeaderFirstFailedAt, message.HeaderFingerprint, "sf-invented", "x-death",
	}), rapid.StringMatching(`(sf-|x-)?[a-z]{1,20}`))
	h := amqp.Table{}
	for range rapid.IntRange(0, 30).Draw(t, "count") {
		h[names.Draw(t, "name")] = rapid.OneOf(
			rapid.Map(rapid.IntRange(0, 100_000), func(n int) any { return strings.Repeat("x", n) }),
			amqpTable(2).AsAny(), rapid.Int64().AsAny(),
			rapid.Map(amqpTable(1), func(t amqp.Table) any { return []any{t, t, "no entry"} }),
		).Draw(t, "value")
	}
	for i := range rapid.IntRange(0, 3000).Draw(t, "many") {
		h[fmt.Sprintf("sf-many-%d", i)] = strings.Repeat("y", 30)
	}
	return h
}

func TestFingerprintIsStableOverIdsAndNumbers(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("reason ", 600)
	for _, same := range [][]string{
		{"order 9 failed", "order 10 failed", "order 12345678901 failed", "order -1 failed", "order 1.5 failed", "order 1,000 failed"},
		{"order 8b7c1f9a-3a5e-4c8b-9c1a-0d2e4f6a8b0c failed", "order 01890A5D-AC96-774B-BCCE-B302099A8057 failed"},
		{"order_8b7c1f9a-3a5e-4c8b-9c1a-0d2e4f6a8b0c failed", "order_01890A5D-AC96-774B-BCCE-B302099A8057 failed"},
		{"id 01ARZ3NDEKTSV4RRFFQ69G5FAV", "id 0ujsswThIGTUYm2K8FZUFXoAAAA"},
		{"at 0xc000123456", "at 0xc0000000abcdef"},
		{"dial tcp 10.0.0.1:5432: refused", "dial tcp 192.168.100.20:65001: refused"},
		{`no customer "Ann"`, `no customer "Bob O'Hara"`},
		{"row 9 " + long, "row 1234567890 " + long},
		{long + "row 9", long + "row 10"},
	} {
		for _, text := range same[1:] {
			require.Equal(t, message.Fingerprint("c", "t", same[0]), message.Fingerprint("c", "t", text), "%s", text[:min(80, len(text))])
		}
	}
}

func TestFingerprintTellsCausesApart(t *testing.T) {
	t.Parallel()
	seen := map[string]bool{}
	for _, f := range [][3]string{
		{"transient", "t", "stock is empty"},
		{"transient", "t", "card declined"},
		{"permanent", "t", "card declined"},
		{"transient", "u", "card declined"},
		{"transient", "t", "unsubscribed notification"},
		{"transient", "t", "unacknowledged notification"},
		{"transient", "t", ""},
		{"", "transientt", ""},
	} {
		print := message.Fingerprint(f[0], f[1], f[2])
		require.Len(t, print, 16)
		require.False(t, seen[print], "%v", f)
		seen[print] = true
	}
}

// The fingerprint is of the whole text, not of what Write keeps of it.
func TestFingerprintOfALongTextIsTheSameInTheRecord(t *testing.T) {
	t.Parallel()
	text := strings.Repeat("id 8b7c1f9a-3a5e-4c8b-9c1a-0d2e4f6a8b0c ", 40)
	h := amqp.Table{}
	message.Failure{Class: "c", Type: "t", Message: text}.Write(h, 1)
	require.Equal(t, message.Fingerprint("c", "t", text), message.FailureOf(h).Fingerprint)
}

func TestProgramsFailuresAreKnownByTheirTypes(t *testing.T) {
	t.Parallel()
	for typ, want := range map[string]bool{
		"exit 65": true, "exit 1": true, "signal": true, "killed": true,
		"": false, "exit": false, "exit now": false, "exec.ExitError": false, "signals": false,
	} {
		require.Equal(t, want, message.Failure{Type: typ}.OfProgram(), typ)
	}
}

// The Go client receives 8192 headers and no more: the record, the marks of a redrive and what the broker adds need room there too.
func TestFailureLeavesRoomInNumberToo(t *testing.T) {
	t.Parallel()
	h := amqp.Table{message.HeaderKey: "k"}
	for i := range 8191 {
		h[strconv.FormatInt(int64(i), 36)] = nil
	}
	message.Failure{Class: "transient", Message: "x"}.Write(h, 1)
	require.LessOrEqual(t, len(h), message.MaxNames+1)
	require.Equal(t, "k", h[message.HeaderKey])
	dropped, _ := message.Integer(h[message.HeaderDropped])
	require.Positive(t, dropped)
	require.Equal(t, "x", message.FailureOf(h).Message)
}
