package console

import (
	"errors"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/surefoot-mq/surefoot/internal/access"
)

// routes are those of the console, each with the role that it needs. There is no other way to add one.
type routes struct {
	c     *Console
	mux   *http.ServeMux
	roles map[string]access.Role
}

// handle serves a pattern to those who have the role, and to nobody else.
func (r *routes) handle(role access.Role, pattern string, serve http.HandlerFunc) {
	if role < access.Anyone || role > access.Admin {
		panic("console: " + pattern + " has no role") // a fault of this program, found by its first test
	}
	r.roles[pattern] = role
	r.mux.HandleFunc(pattern, func(w http.ResponseWriter, request *http.Request) {
		p, err := r.c.gate.Who(request)
		switch {
		case role == access.Anyone:
		case err != nil:
			r.c.pages.turnAway(w, request, err)
			return
		case p.Role < role:
			request = request.WithContext(access.With(request.Context(), p))
			r.c.pages.fail(w, request, "/", &statusError{http.StatusForbidden, "this needs the role " + role.String() + ", and yours is " + p.Role.String(), nil})
			return
		}
		serve(w, request.WithContext(access.With(request.Context(), p)))
	})
}

// routes of all pages. A GET changes nothing.
func (p *pages) routes() *routes {
	c := p.c
	r := &routes{c: c, mux: http.NewServeMux(), roles: map[string]access.Role{}}
	r.handle(access.Anyone, "GET /static/{name}", p.static)
	r.handle(access.Anyone, "GET /login", p.loginPage)
	r.handle(access.Anyone, "POST /login", p.logIn)
	r.handle(access.Anyone, "GET /login/oidc", p.beginLogin)
	r.handle(access.Anyone, "GET "+access.CallbackPath, p.endLogin)
	r.handle(access.Anyone, "POST /logout", p.logOut)

	r.handle(access.View, "GET /live", c.live)
	r.handle(access.View, "GET /{$}", p.page("overview", "/", c.overview))
	r.handle(access.View, "GET /queues", p.page("queues", "/queues", c.queuesPage))
	r.handle(access.View, "GET /dead", p.page("groups", "/dead", c.groupsPage))
	r.handle(access.View, "GET /dead/letters", p.page("letters", "/dead", c.lettersPage))
	r.handle(access.View, "GET /dead/letter", p.page("letter", "/dead", c.letterPage))
	r.handle(access.View, "GET /runs", p.page("runs", "/runs", c.runsPage))
	r.handle(access.View, "GET /run", p.page("run", "/runs", c.runPage))
	r.handle(access.View, "GET /sagas", p.page("sagas", "/sagas", c.sagasPage))
	r.handle(access.View, "GET /reconcile", p.page("reconcile", "/reconcile", c.reconcilePage))
	r.handle(access.View, "GET /outbox", p.page("outbox", "/outbox", c.outboxPage))
	r.handle(access.View, "GET /message", p.page("message", "/message", c.messagePage))
	r.handle(access.View, "GET /audit", p.page("audit", "/audit", c.auditPage))
	r.handle(access.View, "GET /", func(w http.ResponseWriter, r *http.Request) {
		p.fail(w, r, "/", &statusError{http.StatusNotFound, "there is no such page", nil})
	})

	r.handle(access.Operate, "GET /dead/note", p.page("note", "/dead", c.notePage))
	r.handle(access.Operate, "POST /dead/note", p.act("/dead", c.note))
	r.handle(access.Operate, "GET /redrive", p.page("redrive", "/dead", c.redriveFormPage))
	r.handle(access.Operate, "POST /redrive", p.planRedrive)
	r.handle(access.Operate, "POST /run/start", p.act("/runs", c.changeRun(c.startRun, "started")))
	r.handle(access.Operate, "POST /run/pause", p.act("/runs", c.changeRun(c.pauseRun, "paused")))
	r.handle(access.Operate, "POST /run/resume", p.act("/runs", c.changeRun(c.resumeRun, "resumed")))
	r.handle(access.Operate, "POST /run/cancel", p.act("/runs", c.changeRun(c.cancelRun, "cancelled")))
	r.handle(access.Operate, "POST /run/drop", p.act("/runs", c.dropPlan))
	r.handle(access.Operate, "POST /sagas/act", p.act("/sagas", c.actOnSagas))
	r.handle(access.Operate, "POST /outbox/retry", p.act("/outbox", c.askOutbox(outboxRetry)))
	r.handle(access.Operate, "POST /queues/pause", p.act("/queues", c.holdQueue(true)))
	r.handle(access.Operate, "POST /queues/resume", p.act("/queues", c.holdQueue(false)))

	r.handle(access.Admin, "GET /dead/discard", p.discard)
	r.handle(access.Admin, "POST /dead/discard", p.discard)
	r.handle(access.Admin, "POST /dead/reveal", p.reveal)
	r.handle(access.Admin, "POST /outbox/discard", p.act("/outbox", c.askOutbox(outboxDiscard)))
	return r
}

// turnAway answers whoever is nobody: with the login where a person waits for a page, and else with the reason alone.
func (p *pages) turnAway(w http.ResponseWriter, r *http.Request, err error) {
	refused := &access.Error{Status: http.StatusForbidden, Text: "this is not possible"}
	_ = errors.As(err, &refused)
	dest := r.Header.Get("Sec-Fetch-Dest")
	if refused.Status == http.StatusUnauthorized && (r.Method == http.MethodGet || r.Method == http.MethodHead) && (dest == "" || dest == "document") && r.URL.Path != "/live" {
		http.Redirect(w, r, "/login?"+url.Values{"next": {access.LocalPath(r.URL.RequestURI())}}.Encode(), http.StatusSeeOther)
		return
	}
	waitHeader(w, refused)
	refuse(w, refused.Status, refused.Text)
}

func waitHeader(w http.ResponseWriter, e *access.Error) {
	if e.Wait > 0 {
		w.Header().Set("Retry-After", strconv.Itoa(int((e.Wait+time.Second-1)/time.Second)))
	}
}

type loginData struct {
	Method, Next, Name, Failed, Provider string
}

func (p *pages) loginPage(w http.ResponseWriter, r *http.Request) {
	p.showLogin(w, r, loginData{Next: access.LocalPath(r.URL.Query().Get("next"))}, nil)
}

func (p *pages) showLogin(w http.ResponseWriter, r *http.Request, d loginData, err error) {
	status := http.StatusOK
	if _, in := p.c.gate.Who(r); in == nil && err == nil {
		http.Redirect(w, r, d.Next, http.StatusSeeOther)
		return
	}
	if refused, ok := errors.AsType[*access.Error](err); ok {
		status, d.Failed = refused.Status, refused.Text
		waitHeader(w, refused)
	} else if err != nil {
		status, d.Failed = http.StatusInternalServerError, "this did not work"
	}
	d.Method = p.c.gate.Method()
	if u, wrong := url.Parse(p.c.opts.Access.OIDC.Issuer); wrong == nil {
		d.Provider = u.Host
	}
	p.write(w, r, status, "login", "/login", found{title: "Log in", data: d})
}

func (p *pages) logIn(w http.ResponseWriter, r *http.Request) {
	d := loginData{Next: access.LocalPath(r.PostFormValue("next")), Name: r.PostFormValue("name")}
	if err := p.c.gate.LogIn(w, r, d.Name, r.PostFormValue("password")); err != nil {
		p.showLogin(w, r, d, err)
		return
	}
	http.Redirect(w, r, d.Next, http.StatusSeeOther)
}

func (p *pages) beginLogin(w http.ResponseWriter, r *http.Request) {
	next := access.LocalPath(r.URL.Query().Get("next"))
	if err := p.c.gate.Begin(w, r, next); err != nil {
		p.showLogin(w, r, loginData{Next: next}, err)
	}
}

func (p *pages) endLogin(w http.ResponseWriter, r *http.Request) {
	next, err := p.c.gate.End(w, r)
	if err != nil {
		p.showLogin(w, r, loginData{Next: "/"}, err)
		return
	}
	http.Redirect(w, r, next, http.StatusSeeOther)
}

func (p *pages) logOut(w http.ResponseWriter, r *http.Request) {
	p.c.gate.LogOut(w, r)
	http.Redirect(w, r, "/login", http.StatusSeeOther)
}
