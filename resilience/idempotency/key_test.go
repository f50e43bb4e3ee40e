package idempotency_test

import (
	"context"
	"strconv"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/surefoot-mq/surefoot/resilience/idempotency"
)

func TestAKeyIsBareOrQuoted(t *testing.T) {
	t.Parallel()
	for header, want := range map[string]string{
		"8e03978e-40d5-43dd-bc93-6894a57f9324":   "8e03978e-40d5-43dd-bc93-6894a57f9324",
		`"8e03978e-40d5-43dd-bc93-6894a57f9324"`: "8e03978e-40d5-43dd-bc93-6894a57f9324",
		` "a b" `:                                "a b",
		`"a\"b\\c"`:                              `a"b\c`,
		`a"b`:                                    `a"b`,
		strings.Repeat("x", 255):                 strings.Repeat("x", 255),
	} {
		key, ok := idempotency.ParseKey([]string{header})
		require.True(t, ok, header)
		require.Equal(t, want, key)
	}
}

// A key that is taken is short and plain, whatever the header is.
func FuzzParseKey(f *testing.F) {
	for _, seed := range []string{"", "a", `"a"`, `"a\"`, `"\\"`, "\"\xff\"", "a\x00", strings.Repeat("x", 256), `"" `, `"a"a`} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, header string) {
		key, ok := idempotency.ParseKey([]string{header})
		if !ok {
			return
		}
		require.NotEmpty(t, key)
		require.LessOrEqual(t, len(key), 255)
		require.Equal(t, -1, strings.IndexFunc(key, func(r rune) bool { return r < ' ' || r > '~' }), "%q", key)
		quoted, ok := idempotency.ParseKey([]string{`"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`).Replace(key) + `"`})
		require.True(t, ok)
		require.Equal(t, key, quoted, "a key is the same in quotes")
	})
}

// The ratio of the two is what a key costs: the handler and its transaction are the same.
func BenchmarkHandle(b *testing.B) {
	p := newPlace(b)
	s := p.store(b).Handle(p.handler)
	bare := func(ctx context.Context) error {
		return pgx.BeginFunc(ctx, p.Pool, func(tx pgx.Tx) error {
			_, err := p.apply(ctx, tx)
			return err
		})
	}
	b.Run("bare", func(b *testing.B) {
		for b.Loop() {
			require.NoError(b, bare(b.Context()))
		}
	})
	n := 0
	b.Run("key", func(b *testing.B) {
		for b.Loop() {
			n++
			require.Equal(b, 201, direct(b.Context(), s, strconv.Itoa(n)).status)
		}
	})
	b.Run("replayed", func(b *testing.B) {
		for b.Loop() {
			require.Equal(b, 201, direct(b.Context(), s, "again").status)
		}
	})
}
