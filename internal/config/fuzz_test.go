package config_test

import (
	"os"
	"strings"
	"testing"

	"github.com/surefoot-mq/surefoot/internal/config"
)

// FuzzLoad looks for files that crash the reader, hang it, or make it show the secret that they hold.
func FuzzLoad(f *testing.F) {
	example, err := os.ReadFile("../../docs/surefoot.yaml")
	if err != nil {
		f.Fatal(err)
	}
	f.Add(string(example))
	f.Add("relay: {lease: 10s, window_bytes: 1KiB}\n")
	f.Add("a: &a [*a]\n<<: *a\n? [x]\n: !!str 5\n")
	f.Add("relay:\n\tlease: |\n  x\n---\n...\n")
	f.Add("watchdog: {rules: [{payload: {1: a, true: null}}]}")
	f.Fuzz(func(t *testing.T, text string) {
		const secret = "vErYsEcReT"
		// The password stands where the text of the file may cut it in any way.
		yaml := text + "\ndatabase:\n  url: postgres://ann:" + secret + "@h/d\n"
		got, err := load(yaml)
		if (got == nil) == (err == nil) {
			t.Fatalf("config %v and error %v", got, err)
		}
		if err != nil && strings.Contains(err.Error(), secret) {
			t.Fatalf("the password is shown: %s", err)
		}
	})
}

func FuzzSize(f *testing.F) {
	for _, text := range []string{"16MiB", "0", "1GiB", "9223372036854775807", "8589934592GiB", "-1", "1.5KiB", "B"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		var size, again config.Size
		if size.UnmarshalText([]byte(text)) != nil {
			return
		}
		if err := again.UnmarshalText([]byte(size.String())); err != nil || again != size || size < 0 {
			t.Fatalf("%q is %d, written %s, read %d (%v)", text, size, size, again, err)
		}
	})
}
