package resilience_test

import (
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/surefoot-mq/surefoot/resilience"
)

func TestSettingsHaveTheDocumentedDefaults(t *testing.T) {
	t.Parallel()
	got := resilience.Settings{}.WithDefaults()
	require.Equal(t, resilience.Settings{
		Deadline: 6300 * time.Millisecond, Timeout: 2 * time.Second,
		Retry:    resilience.Retry{Attempts: 3, Base: 100 * time.Millisecond, Max: 2 * time.Second},
		Breaker:  resilience.Breaker{Failures: 5, Window: 10 * time.Second, Open: 30 * time.Second, Probes: 1},
		Bulkhead: resilience.Bulkhead{Active: 20, Queue: 40, PerTenant: 20},
	}, got)
	require.Equal(t, got, got.WithDefaults())
	require.NoError(t, resilience.Settings{}.Validate())
	require.Empty(t, resilience.Settings{}.Warnings())
}

func TestSettingsFaultsAreFoundAllAtOnce(t *testing.T) {
	t.Parallel()
	err := resilience.Settings{
		Deadline: time.Millisecond, Retry: resilience.Retry{Base: time.Second, Max: time.Millisecond},
		Breaker: resilience.Breaker{Consecutive: true, Window: time.Second}, Bulkhead: resilience.Bulkhead{Active: 5, Reserve: 5, Queue: -2},
	}.Validate()
	require.EqualError(t, err, `deadline is 1ms, but must be from 25ms to 1h0m0s
retry.max is 1ms, but must be from 1s to 1h0m0s
breaker.window does not go with consecutive: failures in a row count however far apart they are
bulkhead.queue is -2, but must be from -1 to 100000
bulkhead.reserve is 5, but must be from 0 to 4`)
}

func TestSettingsThatDoNotDoWhatTheySeemTo(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		settings resilience.Settings
		want     string // empty: no warning
	}{
		"one attempt for the whole deadline": {resilience.Settings{Deadline: time.Second, Timeout: time.Second, Retry: resilience.Retry{Attempts: 1}}, ""},
		"attempts do not fit":                {resilience.Settings{Deadline: 3 * time.Second}, "3 attempts of 2s with their waits take up to 6.3s, more than the deadline of 3s"},
		"timeout is no limit":                {resilience.Settings{Deadline: 2 * time.Second}, "timeout (2s) is not smaller than deadline (2s) around it"},
		"slow is past the timeout":           {resilience.Settings{Breaker: resilience.Breaker{Slow: 2 * time.Second}}, "breaker.slow (2s) is not smaller than timeout (2s) around it"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			require.NoError(t, tt.settings.Validate())
			got := tt.settings.Warnings()
			if tt.want == "" {
				require.Empty(t, got)
				return
			}
			require.Len(t, got, 1)
			require.Contains(t, got[0], tt.want)
		})
	}
}

func TestBackoffDoublesUpToItsCap(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		r := resilience.Retry{Base: time.Duration(rapid.Int64Range(1, int64(time.Hour)).Draw(t, "base"))}
		r.Max = time.Duration(rapid.Int64Range(int64(r.Base), int64(2*time.Hour)).Draw(t, "max"))
		require.Equal(t, r.Base, r.Backoff(1))
		for n := 2; n < 100; n++ {
			require.Equal(t, min(2*r.Backoff(n-1), r.Max), r.Backoff(n))
		}
	})
}

func TestRetryAfter(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	date := func(d time.Duration) string { return now.Add(d).Format(http.TimeFormat) }
	for name, tt := range map[string]struct {
		header, date string
		want         time.Duration
	}{
		"seconds":                     {"7", "", 7 * time.Second},
		"spaces":                      {" 7 ", "", 7 * time.Second},
		"none to wait":                {"0", "", 0},
		"missing":                     {"", "", time.Second},
		"broken":                      {"soon", "", time.Second},
		"negative":                    {"-5", "", time.Second},
		"fraction":                    {"1.5", "", time.Second},
		"beyond all bounds":           {"99999999999999999999", "", time.Second},
		"date":                        {date(90 * time.Second), "", 90 * time.Second},
		"date in the past":            {date(-time.Minute), "", time.Second},
		"date of a clock that is off": {date(time.Hour + 30*time.Second), date(time.Hour), 30 * time.Second},
		"broken date of the response": {date(30 * time.Second), "yesterday", 30 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := http.Header{}
			h.Set("Retry-After", tt.header)
			h.Set("Date", tt.date)
			require.Equal(t, tt.want, resilience.RetryAfterOf(h, now))
		})
	}
}

func FuzzRetryAfter(f *testing.F) {
	f.Add("7", "")
	f.Add("Sun, 01 Mar 2026 12:00:00 GMT", "Sun, 01 Mar 2026 11:59:00 GMT")
	f.Add("Fri, 31 Dec 9999 23:59:59 GMT", "Mon, 01 Jan 0001 00:00:00 GMT")
	f.Fuzz(func(t *testing.T, after, date string) {
		if wait := resilience.RetryAfterOf(http.Header{"Retry-After": {after}, "Date": {date}}, time.Unix(0, 0)); wait < 0 {
			t.Fatalf("%q at %q is %s", after, date, wait)
		}
	})
}
