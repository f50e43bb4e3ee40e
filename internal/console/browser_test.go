package console_test

import (
	"context"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"
	"github.com/stretchr/testify/require"

	"github.com/surefoot-mq/surefoot/internal/testkit"
)

// browser is one Chromium with one page, and what the page complained of.
type browser struct {
	testing.TB
	ctx    context.Context //nolint:containedctx // chromedp's handle of the page
	base   string
	mu     sync.Mutex
	faults []string
}

// openBrowser starts a Chromium of the test's own. Whatever its page complains of fails the test: exceptions, refusals by the policy.
func (s *stage) openBrowser(width int64) *browser {
	s.Helper()
	program := testkit.Browser(s)
	dir, err := os.MkdirTemp("", "surefoot-browser-")
	require.NoError(s, err)
	options := append(chromedp.DefaultExecAllocatorOptions[:], chromedp.ExecPath(program), chromedp.UserDataDir(dir), chromedp.NoSandbox, chromedp.DisableGPU,
		chromedp.Flag("disable-component-update", true), chromedp.Flag("hide-scrollbars", true), chromedp.Flag("mute-audio", true))
	allocator, stop := chromedp.NewExecAllocator(context.WithoutCancel(s.Context()), options...)
	ctx, closePage := chromedp.NewContext(allocator)
	b := &browser{TB: s.TB, base: s.base}
	s.Cleanup(func() {
		_ = chromedp.Cancel(ctx) // it may be gone already
		closePage()
		stop()
		_ = os.RemoveAll(dir)
		b.mu.Lock()
		defer b.mu.Unlock()
		require.Empty(s, b.faults, "the page complained")
	})
	require.NoError(s, chromedp.Listen(ctx, b.listen)) // starts it: with a limit, its end would be that of the browser
	limited, end := context.WithTimeout(ctx, 2*time.Minute)
	s.Cleanup(end)
	b.ctx = limited
	_, err = chromedp.Run(b.ctx, func(ctx context.Context, t *chromedp.Target) (chromedp.Void, error) {
		_, err := cdp.Call(ctx, t, log.Enable, cdp.Empty{})
		return chromedp.Void{}, err
	})
	require.NoError(s, err)
	b.resize(width)
	return b
}

func (b *browser) listen(event any) {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch event := event.(type) {
	case *runtime.EventExceptionThrown:
		b.faults = append(b.faults, fmt.Sprintf("%+v", event.ExceptionDetails))
	case *log.EventEntryAdded:
		if event.Entry.Source != log.EntrySourceNetwork { // a console that was stopped cannot be reached
			b.faults = append(b.faults, event.Entry.Text)
		}
	}
}

func (b *browser) resize(width int64) {
	b.Helper()
	_, err := chromedp.Run(b.ctx, func(ctx context.Context, t *chromedp.Target) (cdp.Empty, error) {
		return cdp.Call(ctx, t, emulation.SetDeviceMetricsOverride, emulation.SetDeviceMetricsOverrideParams{Width: width, Height: 844, DeviceScaleFactor: 1, Mobile: width < 500})
	})
	require.NoError(b, err)
}

// media sets what the reader prefers.
func (b *browser) media(scheme string) {
	b.Helper()
	_, err := chromedp.Run(b.ctx, func(ctx context.Context, t *chromedp.Target) (cdp.Empty, error) {
		return cdp.Call(ctx, t, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{Features: []*emulation.MediaFeature{
			{Name: "prefers-color-scheme", Value: scheme}, {Name: "prefers-reduced-motion", Value: "reduce"},
		}})
	})
	require.NoError(b, err)
}

func (b *browser) do(steps ...chromedp.Action[chromedp.Void]) {
	b.Helper()
	require.NoError(b, chromedp.Do(b.ctx, steps...))
}

func (b *browser) open(path string) {
	b.Helper()
	b.do(chromedp.Navigate(b.base + path))
}

func evaluate[T any](b *browser, script string) T {
	b.Helper()
	value, err := chromedp.Run(b.ctx, chromedp.Evaluate[T](script))
	require.NoError(b, err, script)
	return value
}

// see waits until part of the page says something.
func (b *browser) see(selector string, wanted ...string) {
	b.Helper()
	script := fmt.Sprintf("(document.querySelector(%q) || {innerText: ''}).innerText", selector)
	testkit.EventuallyNil(b, patience, selector, func() error {
		text, err := chromedp.Run(b.ctx, chromedp.Evaluate[string](script)) // fails while the page is being replaced
		if err != nil {
			return err
		}
		for _, w := range wanted {
			if !strings.Contains(text, w) {
				return fmt.Errorf("does not say %q: %.400q", w, text)
			}
		}
		return nil
	})
}

// click presses what can be pressed, as a mouse does.
func (b *browser) click(selector string) {
	b.Helper()
	b.do(chromedp.Click(chromedp.CSS(selector), chromedp.NodeVisible))
}

// fill fills in a field.
func (b *browser) fill(selector, text string) {
	b.Helper()
	b.do(chromedp.WaitVisible(chromedp.CSS(selector)))
	evaluate[bool](b, fmt.Sprintf("(() => { const e = document.querySelector(%q); e.value = %q; e.dispatchEvent(new Event('input', {bubbles: true})); return true })()", selector, text))
}

// fits says that the page is no wider than the window.
func (b *browser) fits(path string) {
	b.Helper()
	require.True(b, evaluate[bool](b, "document.documentElement.scrollWidth <= window.innerWidth"), "%s is wider than its window: %s", path, evaluate[string](b,
		`[...document.querySelectorAll("body *")].filter(e => e.getBoundingClientRect().right > window.innerWidth + 1 && !e.closest("pre") && !e.closest(".hidden")).slice(0, 5).map(e => e.outerHTML.slice(0, 150)).join("\n")`))
}
