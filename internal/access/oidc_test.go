package access_test

import (
	"crypto"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"maps"
	"math/big"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/surefoot-mq/surefoot/internal/access"
)

// idp is a provider: it leads back at once, as if its person had logged in there long ago.
type idp struct {
	testing.TB
	*httptest.Server
	mu     sync.Mutex
	key    *rsa.PrivateKey
	kid    string
	claims map[string]any // of the next token, beside those that are always there
	sign   *rsa.PrivateKey
	state  func(string) string
	codes  map[string]url.Values // what was asked for by code
	asked  []url.Values          // of the token endpoint
	fails  int                   // status of the token endpoint; 0: it works
}

func newIDP(t testing.TB) *idp {
	t.Helper()
	p := &idp{TB: t, codes: map[string]url.Values{}, state: func(s string) string { return s }}
	p.rotate("first")
	mux := http.NewServeMux()
	answer := func(w http.ResponseWriter, v any) {
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(v)
	}
	mux.HandleFunc("GET /.well-known/openid-configuration", func(w http.ResponseWriter, _ *http.Request) {
		answer(w, map[string]any{
			"issuer": p.URL, "authorization_endpoint": p.URL + "/authorize", "token_endpoint": p.URL + "/token", "jwks_uri": p.URL + "/keys",
			"id_token_signing_alg_values_supported": []string{"RS256"}, "response_types_supported": []string{"code"}, "subject_types_supported": []string{"public"},
		})
	})
	mux.HandleFunc("GET /keys", func(w http.ResponseWriter, _ *http.Request) {
		p.mu.Lock()
		defer p.mu.Unlock()
		answer(w, map[string]any{"keys": []any{map[string]string{
			"kty": "RSA", "use": "sig", "alg": "RS256", "kid": p.kid, "n": b64(p.key.N.Bytes()), "e": b64(big.NewInt(int64(p.key.E)).Bytes()),
		}}})
	})
	mux.HandleFunc("GET /authorize", func(w http.ResponseWriter, r *http.Request) {
		p.mu.Lock()
		defer p.mu.Unlock()
		code, q := rand.Text(), r.URL.Query()
		p.codes[code] = q
		http.Redirect(w, r, q.Get("redirect_uri")+"?"+url.Values{"code": {code}, "state": {p.state(q.Get("state"))}}.Encode(), http.StatusFound)
	})
	mux.HandleFunc("POST /token", func(w http.ResponseWriter, r *http.Request) {
		p.mu.Lock()
		defer p.mu.Unlock()
		_ = r.ParseForm()
		p.asked = append(p.asked, r.PostForm)
		q, known := p.codes[r.PostFormValue("code")]
		delete(p.codes, r.PostFormValue("code"))
		sum := sha256.Sum256([]byte(r.PostFormValue("code_verifier")))
		if p.fails != 0 || !known || q.Get("code_challenge_method") != "S256" || q.Get("code_challenge") != b64(sum[:]) || q.Get("redirect_uri") != r.PostFormValue("redirect_uri") {
			w.WriteHeader(max(p.fails, http.StatusBadRequest))
			_, _ = w.Write([]byte(`{"error": "invalid_grant", "error_description": "token-of-somebody"}`))
			return
		}
		now := time.Now().Unix()
		claims := map[string]any{"iss": p.URL, "sub": "4711", "aud": "surefoot", "iat": now, "exp": now + 300, "nonce": q.Get("nonce"), "preferred_username": "ann"}
		maps.Copy(claims, p.claims)
		answer(w, map[string]any{"access_token": "opaque", "token_type": "Bearer", "expires_in": 300, "id_token": p.token(claims)})
	})
	p.Server = httptest.NewServer(mux)
	t.Cleanup(p.Close)
	return p
}

func b64(data []byte) string { return base64.RawURLEncoding.EncodeToString(data) }

// rotate makes a new key; tokens of the old one are worth nothing.
func (p *idp) rotate(kid string) {
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	require.NoError(p, err)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.key, p.sign, p.kid = key, key, kid
}

func (p *idp) token(claims map[string]any) string {
	head, err := json.Marshal(map[string]string{"alg": "RS256", "kid": p.kid, "typ": "JWT"})
	require.NoError(p, err)
	body, err := json.Marshal(claims)
	require.NoError(p, err)
	text := b64(head) + "." + b64(body)
	sum := sha256.Sum256([]byte(text))
	signature, err := rsa.SignPKCS1v15(rand.Reader, p.sign, crypto.SHA256, sum[:])
	require.NoError(p, err)
	return text + "." + b64(signature)
}

// says sets the claims of the tokens to come.
func (p *idp) says(claims map[string]any) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.claims = claims
}

func (p *idp) options() access.Options {
	return access.Options{Mapping: mapping(), OIDC: access.OIDC{
		Issuer: p.URL, ClientID: "surefoot", Scopes: []string{"openid", "profile"},
		Secret: func() (string, error) { return "client-secret", nil }, Client: &http.Client{Timeout: 10 * time.Second, Transport: &http.Transport{DisableKeepAlives: true}},
	}}
}

func TestLoginByAProvider(t *testing.T) {
	t.Parallel()
	p := newIDP(t)
	s := newSite(t, p.options())
	v := s.visitor()
	p.says(map[string]any{"groups": []string{"everybody", "sre"}})
	status, body, _ := v.do(http.MethodGet, s.URL+"/login/oidc?next=/dead")
	require.Equal(t, http.StatusOK, status, body)
	require.Contains(t, body, `"name":"ann"`)
	require.Contains(t, body, `"role":"operate"`)
	require.NotContains(t, s.log.String(), "client-secret")

	p.rotate("second") // its keys are asked for again
	other := s.visitor()
	p.says(map[string]any{"groups": "leads", "preferred_username": "bob"})
	_, body, _ = other.do(http.MethodGet, s.URL+"/login/oidc")
	require.Contains(t, body, `"role":"admin"`)
	_, body = v.who()
	require.Contains(t, body, `"name":"ann"`, "sessions under way stay")

	o := p.options()
	o.OIDC.RoleClaim, o.OIDC.NameClaim = "realm_access.roles", "email"
	s = newSite(t, o)
	p.says(map[string]any{"realm_access": map[string]any{"roles": []any{7, "dev"}}, "email": "ann@example.org", "groups": "leads"})
	_, body, _ = s.visitor().do(http.MethodGet, s.URL+"/login/oidc")
	require.Contains(t, body, `"name":"ann@example.org"`)
	require.Contains(t, body, `"role":"view"`)
}

func TestTokensThatAreRefused(t *testing.T) {
	t.Parallel()
	now := time.Now().Unix()
	for name, claims := range map[string]map[string]any{
		"expired":             {"exp": now - 60},
		"wrong audience":      {"aud": "another"},
		"wrong issuer":        {"iss": "https://evil.example"},
		"bad nonce":           {"nonce": "of another login"},
		"no nonce":            {"nonce": ""},
		"unknown role":        {"groups": []string{"leads2"}},
		"no role":             {"groups": nil},
		"a role of no text":   {"groups": map[string]any{"leads": true}},
		"no name":             {"preferred_username": ""},
		"a name of no text":   {"preferred_username": 7},
		"a name that hides":   {"preferred_username": "ann\u202e"},
		"a name of two":       {"preferred_username": "ann\nroot"},
		"not before":          {"nbf": now + 3600},
		"no expiry":           {"exp": nil},
		"audience is missing": {"aud": nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := newIDP(t)
			all := map[string]any{"groups": []string{"leads"}}
			maps.Copy(all, claims)
			p.says(all)
			s := newSite(t, p.options())
			v := s.visitor()
			status, body, _ := v.do(http.MethodGet, s.URL+"/login/oidc")
			require.GreaterOrEqual(t, status, 400, body)
			status, _ = v.who()
			require.Equal(t, http.StatusUnauthorized, status)
			require.Zero(t, s.gate.Sessions())
			require.Contains(t, s.log.String(), `"level":"warn"`)
		})
	}
}

func TestLoginsThatWereNotBegun(t *testing.T) {
	t.Parallel()
	p := newIDP(t)
	p.says(map[string]any{"groups": "leads"})
	s := newSite(t, p.options())
	p.state = func(string) string { return "of somebody else" }
	status, body, _ := s.visitor().do(http.MethodGet, s.URL+"/login/oidc")
	require.Equal(t, http.StatusBadRequest, status, body)
	require.Empty(t, p.asked, "the code is not even tried")
	p.state = func(s string) string { return s }

	// Without the cookie of the browser that began it, and with one that somebody has made up.
	for _, value := range []string{"", "nonsense", strings.Repeat("A", 200)} {
		status, _, _ = s.visitor().do(http.MethodGet, s.URL+"/login/callback?code=x&state=", with("Cookie", "surefoot-login="+value))
		require.Equal(t, http.StatusBadRequest, status)
	}

	// A login is good once, and for some minutes.
	v := s.visitor()
	var callback, cookie string
	v.client.CheckRedirect = func(r *http.Request, _ []*http.Request) error {
		if r.URL.Path == access.CallbackPath {
			callback = r.URL.String()
			for _, c := range v.client.Jar.Cookies(r.URL) {
				cookie = c.String()
			}
			return http.ErrUseLastResponse
		}
		return nil
	}
	_, _, _ = v.do(http.MethodGet, s.URL+"/login/oidc")
	require.NotEmpty(t, cookie)
	s.clock.pass(11 * time.Minute)
	status, _, _ = s.visitor().do(http.MethodGet, callback, with("Cookie", cookie))
	require.Equal(t, http.StatusBadRequest, status, "too late")
	s.clock.pass(-11 * time.Minute)
	s.gate.LogOut(httptest.NewRecorder(), httptest.NewRequest(http.MethodPost, "/", http.NoBody))
	first := s.visitor()
	first.client.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	status, _, head := first.do(http.MethodGet, callback, with("Cookie", cookie))
	require.Equal(t, http.StatusSeeOther, status)
	require.Contains(t, strings.Join(head.Values("Set-Cookie"), "\n"), "surefoot-login=; Path=/; Max-Age=0")
	status, _, _ = s.visitor().do(http.MethodGet, callback, with("Cookie", cookie))
	require.Equal(t, http.StatusBadGateway, status, "the code was used")
	require.NotContains(t, s.log.String(), "token-of-somebody")

	// Somebody else's key under the same name.
	wrong, err := rsa.GenerateKey(rand.Reader, 2048)
	require.NoError(t, err)
	p.mu.Lock()
	p.sign = wrong
	p.mu.Unlock()
	status, _, _ = s.visitor().do(http.MethodGet, s.URL+"/login/oidc")
	require.Equal(t, http.StatusBadGateway, status)
	require.Equal(t, 1, s.gate.Sessions())

	// Where to go on is here.
	for _, next := range []string{"https://evil.example/", "//evil.example", "/\\evil.example"} {
		v := s.visitor()
		p.mu.Lock()
		p.sign = p.key
		p.mu.Unlock()
		s.clock.pass(time.Minute)
		status, body, _ := v.do(http.MethodGet, s.URL+"/login/oidc?next="+url.QueryEscape(next))
		require.Equal(t, http.StatusOK, status, body)
	}
	s.clock.pass(-3 * time.Minute)
	status, body, _ = s.visitor().do(http.MethodGet, s.URL+"/login/callback?error=access_denied&state=x")
	require.Equal(t, http.StatusBadRequest, status, body)
}

// The provider may be away when the console begins, and comes back.
func TestAProviderThatIsAway(t *testing.T) {
	t.Parallel()
	p := newIDP(t)
	p.says(map[string]any{"groups": "dev"})
	o := p.options()
	away := true
	o.OIDC.Client = &http.Client{Timeout: 5 * time.Second, Transport: roundTrip(func(r *http.Request) (*http.Response, error) {
		if away {
			return nil, http.ErrServerClosed
		}
		return http.DefaultTransport.RoundTrip(r)
	})}
	s := newSite(t, o)
	status, body, _ := s.visitor().do(http.MethodGet, s.URL+"/login/oidc")
	require.Equal(t, http.StatusBadGateway, status)
	require.NotContains(t, body, p.URL)
	require.Contains(t, s.log.String(), "login by the provider failed")
	away = false
	status, body, _ = s.visitor().do(http.MethodGet, s.URL+"/login/oidc")
	require.Equal(t, http.StatusOK, status, body)
	http.DefaultTransport.(*http.Transport).CloseIdleConnections()
	for range 12 {
		status, _, _ = s.visitor().do(http.MethodGet, s.URL+"/login/callback")
	}
	require.Equal(t, http.StatusBadRequest, status)
}

type roundTrip func(*http.Request) (*http.Response, error)

func (f roundTrip) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }
