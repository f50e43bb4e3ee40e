package access_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/cookiejar"
	"net/http/httptest"
	"net/netip"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"

	"github.com/surefoot-mq/surefoot/internal/access"
	"github.com/surefoot-mq/surefoot/internal/testkit"
)

// clock is one that is set.
type clock struct {
	mu  sync.Mutex
	now time.Time
}

func newClock() *clock { return &clock{now: time.Now()} }

func (c *clock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

func (c *clock) pass(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = c.now.Add(d)
}

// site is a server behind a gate: GET / says who one is.
type site struct {
	testing.TB
	*httptest.Server
	gate  *access.Gate
	clock *clock
	log   testkit.Buffer
}

func newSite(t testing.TB, o access.Options) *site {
	t.Helper()
	s := &site{TB: t, clock: newClock()}
	o.Clock, o.Logger = s.clock.Now, zerolog.New(&s.log)
	if o.ReadFile == nil {
		o.ReadFile = os.ReadFile
	}
	var err error
	s.gate, err = access.New(access.Cheap(o))
	require.NoError(t, err)
	answer := func(w http.ResponseWriter, p access.Person, err error) {
		if refused, ok := errors.AsType[*access.Error](err); ok {
			w.WriteHeader(refused.Status)
			_, _ = io.WriteString(w, refused.Text)
			return
		}
		_ = json.NewEncoder(w).Encode(map[string]string{"name": p.Name, "role": p.Role.String(), "addr": p.Address, "error": fmt.Sprint(err)})
	}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /", func(w http.ResponseWriter, r *http.Request) {
		p, err := s.gate.Who(r)
		if reach := s.gate.Reaches(r); reach != nil {
			err = reach
		}
		answer(w, p, err)
	})
	mux.HandleFunc("POST /login", func(w http.ResponseWriter, r *http.Request) {
		answer(w, access.Person{}, s.gate.LogIn(w, r, r.FormValue("name"), r.FormValue("password")))
	})
	mux.HandleFunc("GET /login/oidc", func(w http.ResponseWriter, r *http.Request) {
		if err := s.gate.Begin(w, r, r.FormValue("next")); err != nil {
			answer(w, access.Person{}, err)
		}
	})
	mux.HandleFunc("GET /login/callback", func(w http.ResponseWriter, r *http.Request) {
		next, err := s.gate.End(w, r)
		if err != nil {
			answer(w, access.Person{}, err)
			return
		}
		http.Redirect(w, r, next, http.StatusSeeOther)
	})
	mux.HandleFunc("POST /logout", func(w http.ResponseWriter, r *http.Request) { s.gate.LogOut(w, r) })
	s.Server = httptest.NewServer(mux)
	t.Cleanup(s.Close)
	return s
}

// visitor is a browser with cookies of its own.
func (s *site) visitor() *visitor {
	jar, err := cookiejar.New(nil)
	require.NoError(s, err)
	return &visitor{site: s, client: &http.Client{Jar: jar, Timeout: 20 * time.Second, Transport: &http.Transport{DisableKeepAlives: true}}}
}

type visitor struct {
	*site
	client *http.Client
}

func (v *visitor) do(method, address string, change ...func(*http.Request)) (status int, body string, head http.Header) {
	v.Helper()
	r, err := http.NewRequestWithContext(v.Context(), method, address, http.NoBody)
	require.NoError(v, err)
	for _, c := range change {
		c(r)
	}
	response, err := v.client.Do(r)
	require.NoError(v, err)
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	require.NoError(v, err)
	return response.StatusCode, string(text), response.Header
}

func (v *visitor) who(change ...func(*http.Request)) (status int, body string) {
	v.Helper()
	status, body, _ = v.do(http.MethodGet, v.URL+"/", change...)
	return status, body
}

func with(name string, values ...string) func(*http.Request) {
	return func(r *http.Request) {
		for _, value := range values {
			r.Header.Add(name, value)
		}
	}
}

func prefixes(texts ...string) (list []netip.Prefix) {
	for _, text := range texts {
		list = append(list, netip.MustParsePrefix(text))
	}
	return list
}

func mapping() access.Mapping {
	return access.Mapping{View: []string{"dev"}, Operate: []string{"sre"}, Admin: []string{"leads"}}
}
