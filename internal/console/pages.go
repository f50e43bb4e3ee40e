package console

import (
	"bytes"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"errors"
	"fmt"
	"html/template"
	"io/fs"
	"net/http"
	"path"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/surefoot-mq/surefoot/deadletter"
	"github.com/surefoot-mq/surefoot/internal/access"
	"github.com/surefoot-mq/surefoot/internal/escape"
	"github.com/surefoot-mq/surefoot/internal/telemetry"
)

//go:embed templates/*.html static/*
var files embed.FS

// pages make HTML. Safe for concurrent use.
type pages struct {
	c         *Console
	templates map[string]*template.Template
	assets    map[string][]byte
	version   string // of the assets: browsers may keep them
}

func newPages(c *Console) (*pages, error) {
	p := &pages{c: c, templates: map[string]*template.Template{}, assets: map[string][]byte{}}
	if err := p.loadAssets(); err != nil {
		return nil, err
	}
	base, err := template.New("layout.html").Funcs(p.functions()).ParseFS(files, "templates/layout.html", "templates/parts.html")
	if err != nil {
		return nil, fmt.Errorf("console: %w", err)
	}
	names, err := fs.Glob(files, "templates/*.html")
	if err != nil {
		return nil, fmt.Errorf("console: %w", err)
	}
	for _, name := range names {
		if name = path.Base(name); name == "layout.html" || name == "parts.html" {
			continue
		}
		own, err := base.Clone()
		if err == nil {
			own, err = own.ParseFS(files, "templates/"+name)
		}
		if err != nil {
			return nil, fmt.Errorf("console: %w", err)
		}
		p.templates[strings.TrimSuffix(name, ".html")] = own
	}
	return p, nil
}

func (p *pages) loadAssets() error {
	sum := sha256.New()
	entries, err := files.ReadDir("static")
	if err != nil {
		return fmt.Errorf("console: %w", err)
	}
	for _, entry := range entries {
		data, err := files.ReadFile("static/" + entry.Name())
		if err != nil {
			return fmt.Errorf("console: %w", err)
		}
		p.assets[entry.Name()] = data
		_, _ = sum.Write(data) // never fails
	}
	p.version = hex.EncodeToString(sum.Sum(nil)[:6])
	return nil
}

func (p *pages) functions() template.FuncMap {
	return template.FuncMap{
		"cell": cell, "line": line, "lines": block, "number": number, "counted": counted, "at": at, "link": link, "span": span,
		"seconds": seconds, "perSecond": perSecond, "short": short, "dlq": deadletter.DLQ, "runStatus": runStatus,
		"status": func(kind, word string) status { return status{kind, word} },
		"asset":  func(name string) string { return "/static/" + name + "?v=" + p.version },
		"join":   strings.Join,
		"trace":  func(id string) string { return telemetry.TraceLink(p.c.opts.TraceLink, id) },
		"dict": func(pairs ...any) map[string]any {
			m := map[string]any{}
			for i := 0; i+1 < len(pairs); i += 2 {
				m[fmt.Sprint(pairs[i])] = pairs[i+1]
			}
			return m
		},
	}
}

// static serves script, style and icon.
func (p *pages) static(w http.ResponseWriter, r *http.Request) {
	data, known := p.assets[r.PathValue("name")]
	if !known {
		refuse(w, http.StatusNotFound, "no such file")
		return
	}
	if r.URL.Query().Get("v") == p.version {
		w.Header().Set("Cache-Control", "private, max-age=31536000, immutable")
	}
	http.ServeContent(w, r, r.PathValue("name"), time.Time{}, bytes.NewReader(data))
}

// problem is what a page lacks, and why.
type problem struct {
	Title, Text string
}

// view is what a template gets.
type view struct {
	Title string
	// Nav is the path of the page's entry in the navigation.
	Nav string
	Now time.Time
	// Problems are what is missing on the page.
	Problems []problem
	// Done says what the last change did.
	Done string
	// Calls are how many things need somebody, for the title and the navigation.
	Calls   int
	Version string
	// Me is who looks; what this person may not do is not offered.
	Me   access.Person
	Data any
}

// found is what a page shows; its error is one of the page as a whole.
type found struct {
	title    string
	data     any
	problems []problem
}

// statusError is an error with the status of its answer; text is for people.
type statusError struct {
	status int
	text   string
	err    error
}

func (e *statusError) Error() string { return e.text }

func (e *statusError) Unwrap() error { return e.err }

// page serves one template.
func (p *pages) page(name, nav string, find func(*http.Request) (found, error)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		f, err := find(r)
		if err != nil {
			p.fail(w, r, nav, err)
			return
		}
		p.write(w, r, http.StatusOK, name, nav, f)
	}
}

// fail shows an error as a page.
func (p *pages) fail(w http.ResponseWriter, r *http.Request, nav string, err error) {
	status, title := statusOf(err), "This did not work"
	switch status {
	case http.StatusNotFound:
		title = "Not there"
	case http.StatusBadRequest:
		title = "That cannot be asked for"
	case http.StatusForbidden:
		title = "Not permitted"
	}
	if status == http.StatusTooManyRequests || status == http.StatusServiceUnavailable {
		w.Header().Set("Retry-After", "3")
	}
	asks := r.Method == http.MethodGet || r.Method == http.MethodHead
	lost := !asks && unknown(err)
	if lost {
		title = "It is not known whether this was done"
	}
	p.write(w, r, status, "error", nav, found{title: title, data: failure{err.Error(), (status == http.StatusServiceUnavailable || status == http.StatusTooManyRequests) && asks, lost}})
}

// failure is an error as a page shows it. One that passes is asked for again by the page itself; of a change it may be unknown
// whether it was made.
type failure struct {
	Text            string
	Passes, Unknown bool
}

// unknown says of the error of a change that it tells nothing of the change: a service went away, before it, in it, or after it.
func unknown(err error) bool {
	_, told := errors.AsType[*statusError](err)
	return !told && statusOf(err) == http.StatusServiceUnavailable
}

// statusOf is the status of an error's answer: what is not known is a service that is away.
func statusOf(err error) int {
	known, isKnown := errors.AsType[*statusError](err)
	refused, isPg := errors.AsType[*pgconn.PgError](err)
	_, locked := errors.AsType[*deadletter.LockedError](err)
	switch {
	case isKnown:
		return known.status
	case errors.Is(err, deadletter.ErrBadRequest), isPg && strings.HasPrefix(refused.Code, "22"): // a data exception, such as text with a NUL
		return http.StatusBadRequest
	case errors.Is(err, deadletter.ErrNoRun), errors.Is(err, deadletter.ErrNoGroup), errors.Is(err, deadletter.ErrNoLetter), errors.Is(err, deadletter.ErrNoDLQ):
		return http.StatusNotFound
	case errors.Is(err, deadletter.ErrRunState), errors.Is(err, deadletter.ErrRunOwned), locked:
		return http.StatusConflict
	}
	return http.StatusServiceUnavailable
}

// write makes the whole page before it sends any of it. What came through without being escaped is caught here: the templates have
// nothing that does not print.
func (p *pages) write(w http.ResponseWriter, r *http.Request, status int, name, nav string, f found) {
	facts := p.c.known.get()
	v := view{
		Title: f.title, Nav: nav, Now: time.Now(), Done: p.c.done(w, r), Version: p.c.opts.Version, Data: f.data, Me: access.From(r.Context()),
	}
	if v.Me.Role >= access.View { // what is away, and how much, is nothing for others
		v.Problems, v.Calls = append(p.c.problems(&facts), f.problems...), len(p.c.calls(&facts))
	}
	var out bytes.Buffer
	if err := p.templates[name].Execute(&out, v); err != nil {
		p.c.opts.Logger.Error().Err(err).Str("page", name).Msg("page not made")
		refuse(w, http.StatusInternalServerError, "this page could not be made; the log says why")
		return
	}
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	w.WriteHeader(status)
	_, _ = w.Write([]byte(escape.Block(out.String(), 8*out.Len()))) // whoever asked is gone
}
