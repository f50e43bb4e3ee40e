package testkit

import (
	"os"
	"os/exec"
	"testing"
)

// browserVar names the program of a Chromium that is not found by itself.
const browserVar = "SUREFOOT_BROWSER"

// Browser returns the program of a Chromium. Where there is none the test is skipped; in CI it fails, for there scripts/browser
// has installed one.
func Browser(t testing.TB) string {
	t.Helper()
	if path := findBrowser(); path != "" {
		return path
	}
	const how = "no Chromium: run `scripts/browser install`, or name one in " + browserVar
	if os.Getenv("CI") == "true" {
		t.Fatal(how)
	}
	t.Skip(how + "; skipped, so nothing is known of the pages in a browser")
	return ""
}

func findBrowser() string {
	if named := os.Getenv(browserVar); named != "" {
		return named
	}
	for _, name := range []string{"chromium", "chromium-browser", "google-chrome-stable", "google-chrome", "/Applications/Google Chrome.app/Contents/MacOS/Google Chrome"} {
		if path, err := exec.LookPath(name); err == nil {
			return path
		}
	}
	return ""
}
