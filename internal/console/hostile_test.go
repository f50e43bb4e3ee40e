package console_test

import (
	"fmt"
	"net/url"
	"strings"
	"testing"
	"time"
	"unicode"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/surefoot-mq/surefoot/message"
)

// payloads are what a message may hold to hurt whoever looks at it. Each would set window.owned, or be seen.
func payloads() map[string]string {
	return map[string]string{
		"script":    `<script>window.owned=1</script>`,
		"image":     `<img src=x onerror="window.owned=1">`,
		"attribute": `" autofocus onfocus="window.owned=1" x="`,
		"single":    `' onmouseover='window.owned=1`,
		"address":   `javascript:window.owned=1`,
		"svg":       `<svg onload=window.owned=1><animate onbegin=window.owned=1>`,
		"template":  `{{.Data}}${window.owned=1}`,
		"close":     `</title></style></textarea></script><script>window.owned=1</script>`,
		"comment":   `--><script>window.owned=1</script><!--`,
		"ansi":      "\x1b[31mred\x1b]0;owned\x07",
		"rtl":       "moc.live\u202egnp.exe\u2066x\u2069",
		"invisible": "a\u200bb\u2060c\ufeff",
		"null":      "a\x00b",
		"long":      strings.Repeat("W", 4000),
		"words":     strings.Repeat("very long ", 300),
		"zalgo":     "Z" + strings.Repeat("\u0300\u0301\u0302", 200),
		"utf8":      "caf\xe9 \xff\xfe",
	}
}

// hostileLetter has the payload wherever a message can have one.
func hostileLetter(evil string) amqp.Publishing {
	short := message.Clip(evil, 200)
	h := amqp.Table{message.HeaderKey: evil, "x-" + message.Clip(evil, 100): evil, "tenant": evil, message.HeaderAttempts: int64(5), message.HeaderRequestID: evil, "sf-causation-id": evil, "traceparent": "00-" + evil + "-1-01"}
	message.SetOrigin(h, message.Origin{Exchange: evil, RoutingKey: evil, Queue: work})
	for n := range 2 {
		message.Failure{Class: evil, Type: evil, Message: evil, Stack: evil, Host: evil, Version: evil, LastFailedAt: time.Now()}.Write(h, n+1)
	}
	h[message.HeaderErrorClass], h[message.HeaderErrorType], h[message.HeaderErrorMessage] = evil, evil, evil
	h[message.HeaderRedriveRun], h[message.HeaderRedriveCount], h[message.HeaderReprocess] = evil, int64(2), time.Now().Format(time.RFC3339)
	return amqp.Publishing{
		Headers: h, MessageId: short, Type: short, AppId: short, CorrelationId: short, ContentType: short, DeliveryMode: amqp.Persistent,
		Body: []byte(`{"evil":"` + evil + `"}` + evil),
	}
}

// Nothing of a message becomes markup, moves a cursor, turns text around, or breaks the layout, on any page.
func TestBrowserHostileMessages(t *testing.T) {
	t.Parallel()
	s := newStage(t, calmly)
	ids := map[string]string{}
	for name, evil := range payloads() {
		m := hostileLetter(evil)
		ids[name] = m.MessageId
		s.fill(m)
		s.index(m)
	}
	s.see("/dead", fmt.Sprintf("%d messages", len(ids)))
	b := s.openBrowser(390)
	b.open("/") // the list is below
	paths := []string{"/", "/dead", "/queues", "/dead/letters?queue=" + work, "/audit", "/runs"}
	for _, name := range []string{"attribute", "rtl", "long", "zalgo", "close"} {
		id := url.QueryEscape(ids[name])
		evil := url.QueryEscape(message.Clip(payloads()[name], 1500))
		paths = append(paths, "/dead/letter?queue="+work+"&payload=1&id="+id,
			"/dead/letters?queue="+work+"&type="+evil+"&error-contains="+evil+"&id="+evil, "/redrive?queue="+work+"&type="+evil+"&fingerprint="+evil,
			"/audit?who="+evil+"&target="+evil+"&action="+evil, "/queues?queue="+evil, "/message?id="+id)
	}
	for name, id := range ids {
		path := "/dead/letter?payload=1&queue=" + work + "&id=" + url.QueryEscape(id)
		body := s.get(path).body
		plain(t, path, body)
		require.NotRegexp(t, `(?i)<(script>|img|svg onload|animate)`, body, name)
	}
	for _, path := range paths {
		plain(t, path, s.get(path).body)
		b.open(path)
		require.Equal(t, "undefined", evaluate[string](b, "typeof window.owned"), path)
		require.Zero(t, evaluate[int](b, `document.querySelectorAll("main script, main img, main iframe, main animate, main [onerror], main [onfocus], main [autofocus]").length`), path)
		require.Zero(t, evaluate[int](b, `document.querySelectorAll("a[href^='javascript:' i]").length`), path)
		b.fits(path)
	}
	b.resize(1280)
	for _, path := range paths[:8] {
		b.open(path)
		b.fits(path)
	}
	require.Equal(t, "undefined", evaluate[string](b, "typeof window.owned"))
}

// plain says that a page has nothing that moves, hides or turns text.
func plain(t *testing.T, path, page string) {
	t.Helper()
	for _, char := range page {
		bad := unicode.IsControl(char) && char != '\n' && char != '\t' || unicode.Is(unicode.Bidi_Control, char) || char == '\u200b' || char == '\u2060' || char == '\ufeff' || char == unicode.ReplacementChar
		require.False(t, bad, "%s has %U", path, char)
	}
}
