package access

import (
	"cmp"
	"context"
	"crypto/aes"
	"crypto/cipher"
	"crypto/rand"
	"crypto/subtle"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/coreos/go-oidc/v3/oidc"
	"golang.org/x/oauth2"
)

// OIDC is a login by an OpenID Connect provider: the authorization code flow with PKCE, state and nonce.
type OIDC struct {
	// Issuer is the provider's URL, as its tokens have it. Empty: no login by OIDC.
	Issuer string
	// ClientID of this console there.
	ClientID string
	// Secret of the client, read for each login. Default: a public client, which has none.
	Secret func() (string, error)
	// Scopes that are asked for. Default: openid.
	Scopes []string
	// NameClaim has the person's name for the audit. Default: "preferred_username".
	NameClaim string
	// RoleClaim has the values that Mapping maps; dots lead into objects. Default: "groups".
	RoleClaim string
	// Client asks the provider. Required; it must have a timeout.
	Client *http.Client
}

const (
	// flowLasts is how long somebody may take at the provider.
	flowLasts = 10 * time.Minute
	// CallbackPath is where the provider leads back to.
	CallbackPath = "/login/callback"
	// askProvider bounds what is asked of the provider while somebody waits.
	askProvider = 15 * time.Second
)

// provider is discovered at the first login: it may be away when the console begins. Safe for concurrent use.
type provider struct {
	mu    sync.Mutex
	found *oidc.Provider
}

// flow is what is kept in the browser, sealed, while somebody is at the provider.
type flow struct {
	State, Nonce, Verifier, Next, Redirect string
	Until                                  time.Time
}

func newSeal() cipher.AEAD {
	key := make([]byte, 32)
	_, _ = rand.Read(key) // never fails
	block, err := aes.NewCipher(key)
	if err != nil {
		panic(err) // the key has the right length
	}
	seal, err := cipher.NewGCMWithRandomNonce(block)
	if err != nil {
		panic(err) // as has the block
	}
	return seal
}

func (g *Gate) discover(ctx context.Context) (*oidc.Provider, error) {
	g.provider.mu.Lock()
	defer g.provider.mu.Unlock()
	if g.provider.found != nil {
		return g.provider.found, nil
	}
	found, err := oidc.NewProvider(ctx, g.opts.OIDC.Issuer)
	if err != nil {
		return nil, fmt.Errorf("ask the login provider for its configuration: %w", err)
	}
	g.provider.found = found
	return found, nil
}

// asking is a context whose requests go by our client. It does not end with the request, for the provider's keys are asked for by it later.
func (g *Gate) asking(ctx context.Context) context.Context {
	return oidc.ClientContext(context.WithoutCancel(ctx), g.opts.OIDC.Client)
}

func (g *Gate) oauth(p *oidc.Provider, redirect string) (*oauth2.Config, error) {
	o := g.opts.OIDC
	c := &oauth2.Config{ClientID: o.ClientID, Endpoint: p.Endpoint(), RedirectURL: redirect, Scopes: o.Scopes}
	if len(c.Scopes) == 0 {
		c.Scopes = []string{oidc.ScopeOpenID}
	}
	if o.Secret != nil {
		var err error
		if c.ClientSecret, err = o.Secret(); err != nil {
			return nil, err
		}
	}
	return c, nil
}

// errProvider tells nothing of why to whoever asks; the log does.
func (g *Gate) errProvider(r *http.Request, err error) error {
	g.warnings.Do(func() {
		g.opts.Logger.Warn().Str("addr", g.address(r)).Str("error", describe(err)).Msg("console login by the provider failed")
	})
	return &Error{Status: http.StatusBadGateway, Text: "the login provider does not do its part; the log of this console says why", Wait: 10 * time.Second}
}

// describe leaves out the answer of the token endpoint, which may hold tokens.
func describe(err error) string {
	if retrieve, ok := errors.AsType[*oauth2.RetrieveError](err); ok {
		status := 0
		if retrieve.Response != nil {
			status = retrieve.Response.StatusCode
		}
		return fmt.Sprintf("the token endpoint answered %d %.60q", status, retrieve.ErrorCode)
	}
	return fmt.Sprintf("%.400s", err)
}

// Begin leads to the provider, and back to next in the end.
func (g *Gate) Begin(w http.ResponseWriter, r *http.Request, next string) error {
	if g.Method() != ByOIDC {
		return refused("there is no login by a provider")
	}
	if wait := g.addresses.take(g.limitKey(r)); wait > 0 {
		return &Error{http.StatusTooManyRequests, "too many tries; wait for " + fmt.Sprint(wait.Round(time.Second)), wait}
	}
	p, err := g.discover(g.asking(r.Context()))
	if err != nil {
		return g.errProvider(r, err)
	}
	f := flow{
		State: rand.Text(), Nonce: rand.Text(), Verifier: oauth2.GenerateVerifier(), Next: LocalPath(next), Redirect: g.base(r) + CallbackPath,
		Until: g.opts.Clock().Add(flowLasts),
	}
	c, err := g.oauth(p, f.Redirect)
	if err != nil {
		return g.errProvider(r, err)
	}
	text, err := json.Marshal(f)
	if err != nil {
		return fmt.Errorf("encode the login's state: %w", err)
	}
	http.SetCookie(w, g.Cookie("login", base64.RawURLEncoding.EncodeToString(g.seal.Seal(nil, nil, text, nil)), flowLasts))
	http.Redirect(w, r, c.AuthCodeURL(f.State, oidc.Nonce(f.Nonce), oauth2.S256ChallengeOption(f.Verifier)), http.StatusSeeOther)
	return nil
}

// base is how the browser names this server; the host of the request has been checked.
func (g *Gate) base(r *http.Request) string {
	if g.opts.PublicURL != "" {
		return strings.TrimSuffix(g.opts.PublicURL, "/")
	}
	if g.opts.Secure {
		return "https://" + r.Host
	}
	return "http://" + r.Host
}

func (g *Gate) flowOf(r *http.Request) (f flow, known bool) {
	c, err := r.Cookie(g.cookieName("login"))
	if err != nil {
		return f, false
	}
	sealed, err := base64.RawURLEncoding.DecodeString(c.Value)
	if err != nil {
		return f, false
	}
	text, err := g.seal.Open(nil, nil, sealed, nil)
	if err != nil || json.Unmarshal(text, &f) != nil || g.opts.Clock().After(f.Until) {
		return f, false
	}
	return f, true
}

// End takes what the provider says, begins a session, and returns where to go on.
func (g *Gate) End(w http.ResponseWriter, r *http.Request) (next string, err error) {
	if g.Method() != ByOIDC {
		return "", refused("there is no login by a provider")
	}
	f, known := g.flowOf(r)
	http.SetCookie(w, g.Cookie("login", "", 0)) // it is good once
	q := r.URL.Query()
	switch {
	case !known || subtle.ConstantTimeCompare([]byte(q.Get("state")), []byte(f.State)) != 1:
		g.warn(r, "console refused a login that it did not begin")
		return "", &Error{Status: http.StatusBadRequest, Text: "this login was not begun here, or took too long; begin anew"}
	case q.Get("error") != "":
		return "", &Error{Status: http.StatusForbidden, Text: fmt.Sprintf("the login provider refused: %.60q", q.Get("error"))}
	}
	token, err := g.exchange(r.Context(), f, q.Get("code"))
	if err != nil {
		return "", g.errProvider(r, err)
	}
	s, err := g.personOf(token)
	if err != nil {
		g.warnings.Do(func() {
			g.opts.Logger.Warn().Str("addr", g.address(r)).Err(err).Msg("console refused somebody of the login provider")
		})
		return "", err
	}
	g.addresses.give(g.limitKey(r))
	g.begin(w, r, s)
	return f.Next, nil
}

// exchange gets the token of a code, and believes it if provider, audience, time, signature and nonce are right.
func (g *Gate) exchange(ctx context.Context, f flow, code string) (*oidc.IDToken, error) {
	p, err := g.discover(g.asking(ctx))
	if err != nil {
		return nil, err
	}
	c, err := g.oauth(p, f.Redirect)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(g.asking(ctx), askProvider)
	defer cancel()
	tokens, err := c.Exchange(ctx, code, oauth2.VerifierOption(f.Verifier))
	if err != nil {
		return nil, fmt.Errorf("get the token: %w", err)
	}
	raw, ok := tokens.Extra("id_token").(string)
	if !ok {
		return nil, errors.New("the provider's answer has no id_token")
	}
	id, err := p.Verifier(&oidc.Config{ClientID: c.ClientID, Now: g.opts.Clock}).Verify(ctx, raw)
	if err != nil {
		return nil, fmt.Errorf("verify the token: %w", err)
	}
	if subtle.ConstantTimeCompare([]byte(id.Nonce), []byte(f.Nonce)) != 1 {
		return nil, errors.New("the token was made for another login")
	}
	return id, nil
}

// personOf reads name and role of a token.
func (g *Gate) personOf(id *oidc.IDToken) (session, error) {
	var claims map[string]any
	if err := id.Claims(&claims); err != nil {
		return session{}, refused("the provider's token cannot be read")
	}
	o, s := g.opts.OIDC, session{}
	nameClaim, roleClaim := cmp.Or(o.NameClaim, "preferred_username"), cmp.Or(o.RoleClaim, "groups")
	if s.name, _ = claimOf(claims, nameClaim).(string); !fitName(s.name) {
		return s, refused("the claim " + nameClaim + " of your token is no name that could be kept in the audit")
	}
	if s.role = g.opts.Mapping.of(textsOf(claimOf(claims, roleClaim))); s.role == 0 {
		return s, refused("no value of the claim " + roleClaim + " of your token has a role in this console")
	}
	return s, nil
}

// claimOf takes a claim of that very name, and else lets dots lead into objects.
func claimOf(claims map[string]any, name string) any {
	if value, there := claims[name]; there {
		return value
	}
	first, rest, dotted := strings.Cut(name, ".")
	inner, _ := claims[first].(map[string]any)
	if !dotted || inner == nil {
		return nil
	}
	return claimOf(inner, rest)
}

// textsOf are the texts of a claim, which is one or a list.
func textsOf(value any) (texts []string) {
	switch value := value.(type) {
	case string:
		return []string{value}
	case []any:
		for _, v := range value {
			if text, ok := v.(string); ok {
				texts = append(texts, text)
			}
		}
	}
	return texts
}
