package topology_test

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/surefoot-mq/surefoot/topology"
)

func TestNamesOfTheContract(t *testing.T) {
	t.Parallel()
	one := topology.Queue{Name: "orders.saga"}
	require.Equal(t, topology.Path{
		Queue: "orders.saga", DeadLetters: "orders.saga.dlq", Retry: []topology.Tier{{Queue: "orders.saga.retry", Delay: 30 * time.Second}},
	}, one.Path())

	ladder := topology.Queue{Name: "mail", Retry: []time.Duration{300 * time.Millisecond, 30 * time.Second, 5 * time.Minute, 90 * time.Minute, 2 * time.Hour}}
	var names []string
	for _, tier := range ladder.Tiers() {
		names = append(names, tier.Queue)
	}
	require.Equal(t, []string{"mail.retry.300ms", "mail.retry.30s", "mail.retry.5m", "mail.retry.1h30m", "mail.retry.2h"}, names)
}

func TestDefaults(t *testing.T) {
	t.Parallel()
	q, found := topology.Spec{Exchange: "x", Queues: []topology.Queue{{Name: "q", Prefetch: 4}}}.Find("q")
	require.True(t, found)
	require.Equal(t, topology.Queue{
		Name: "q", Exchange: "x", Retry: []time.Duration{30 * time.Second}, MaxAttempts: 5, Prefetch: 4, Concurrency: 4,
		HandlerTimeout: 30 * time.Second, Ordering: topology.OrderingNone,
	}, q)
	_, found = topology.Spec{}.Find("q")
	require.False(t, found)
}

func TestValidateFindsAllFaultsAtOnce(t *testing.T) {
	t.Parallel()
	spec := topology.Spec{Queues: []topology.Queue{
		{},
		{Name: "a", Exchange: "amq.topic", Bindings: []string{"", "a#", "ok.*", "ok.*", strings.Repeat("k", 256), "tab\t"}},
		{Name: "a", Exchange: "x", Retry: []time.Duration{}, MaxAttempts: -1, Prefetch: 70000, Concurrency: 5, HandlerTimeout: time.Hour, Ordering: "strict"},
		{Name: strings.Repeat("n", 250), Exchange: "x", Retry: []time.Duration{time.Minute, time.Second, 5 * time.Microsecond}},
		{Name: "a.dlq", Exchange: "x.dlx", Prefetch: 1, Concurrency: 2, Target: &topology.Target{}, Owner: "\x1b[31m", Runbook: strings.Repeat("r", 1001)},
		{Name: "surefoot.fence.1", Exchange: strings.Repeat("x", 250)},
		{Name: "h1", Exchange: "y", Target: &topology.Target{Exec: []string{"mail"}, HTTP: &topology.HTTPTarget{}}},
		{Name: "h2", Exchange: "y", Target: &topology.Target{HTTP: &topology.HTTPTarget{URL: "mail.example.org/messages", KeyFile: "key"}}},
		{Name: "h3", Exchange: "y", Target: &topology.Target{HTTP: &topology.HTTPTarget{URL: "https://u:secret@mail.example.org/"}}},
		{Name: "h4", Exchange: "y", Target: &topology.Target{HTTP: &topology.HTTPTarget{URL: "https://mail.example.org/#top"}}},
	}}
	var faults topology.FaultsError
	require.ErrorAs(t, spec.Validate(), &faults)
	got := map[string]string{}
	for _, f := range faults {
		got[f.Key] += f.Problem + "\n"
	}
	for key, part := range map[string]string{
		"queues[0].name":            "is missing",
		"queues[0].exchange":        "is missing",
		"queues[1].exchange":        "amq.",
		"queues[1].bindings[0]":     "is empty",
		"queues[1].bindings[1]":     "stand for whole words",
		"queues[1].bindings[3]":     "is there twice",
		"queues[1].bindings[4]":     "has 256 bytes",
		"queues[1].bindings[5]":     "not printable",
		"queues[2].name":            "must be unique",
		"queues[2].retry":           "is empty",
		"queues[2].max_attempts":    "is -1",
		"queues[2].prefetch":        "is 70000",
		"queues[2].handler_timeout": "is 1h0m0s",
		"queues[2].ordering":        "none or lanes",
		"queues[3].name":            "has 250 bytes",
		"queues[3].retry[1]":        "shortest first",
		"queues[3].retry[2]":        "whole milliseconds",
		"queues[4].name":            `makes queue "a.dlq", which queues[1].name makes too`,
		"queues[4].exchange":        "would come back as events",
		"queues[4].concurrency":     "from 1 to prefetch (1)",
		"queues[4].target.exec":     "needs the program",
		"queues[4].owner":           "printable",
		"queues[4].runbook":         "1000 bytes",
		"queues[5].name":            "kept for fences",
		"queues[5].exchange":        "has 250 bytes",

		"queues[6].target":                "a queue has one target",
		"queues[6].target.http.url":       "is missing",
		"queues[7].target.http.url":       "must be a whole one",
		"queues[7].target.http.cert_file": "go together",
		"queues[8].target.http.url":       "has a user or a password in it (not shown)",
		"queues[9].target.http.url":       "fragment",
	} {
		require.Contains(t, got[key], part, "fault of %s in %v", key, got)
	}
	require.NotContains(t, faults.Error(), "secret")
	require.Len(t, got, 31, "%v", got)
}

func TestAGoodSpecHasNoFaults(t *testing.T) {
	t.Parallel()
	require.NoError(t, topology.Spec{}.Validate())
	require.NoError(t, topology.Spec{Exchange: "shop.events", Queues: []topology.Queue{
		{Name: "orders.saga", Bindings: []string{"order.*", "payment.#", "#"}, Retry: []time.Duration{time.Second, time.Minute}, Ordering: topology.OrderingLanes, SingleActiveConsumer: true},
		{Name: "mail", Exchange: "mail.events", Target: &topology.Target{Exec: []string{"mail"}}},
		{Name: "http", Exchange: "mail.events", Target: &topology.Target{HTTP: &topology.HTTPTarget{URL: "https://mail.example.org:8443/messages?x=1"}}},
	}}.Validate())
}

func TestTopicMatches(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		pattern, key string
		want         bool
	}{
		{"order.created", "order.created", true},
		{"order.*", "order.created", true},
		{"order.*", "order", false},
		{"order.*", "order.created.v2", false},
		{"order.#", "order", true},
		{"#", "", true},
		{"#.paid", "a.b.paid", true},
		{"*.#.paid", "paid", false},
		{"#.a.#.b", "x.a.y.z.b", true},
		{"#.a.#.b", "x.b.y.a", false},
		{strings.Repeat("#.a.", 60) + "b", strings.Repeat("a.", 120) + "c", false}, // would take for ever by trial
	} {
		require.Equal(t, c.want, topology.TopicMatches(c.pattern, c.key), "%q against %q", c.pattern, c.key)
	}
}
