package tlsfiles_test

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/surefoot-mq/surefoot/internal/testkit"
	"github.com/surefoot-mq/surefoot/internal/tlsfiles"
)

func TestMain(m *testing.M) { testkit.Main(m) }

// heard is what a listener told.
type heard struct {
	mu    sync.Mutex
	texts []string
}

func (h *heard) tell(err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.texts = append(h.texts, fmt.Sprint(err))
}

// all is what was told until now.
func (h *heard) all() []string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.Clone(h.texts)
}

// serve answers each connection over TLS with a byte and returns its address.
func serve(t *testing.T, files tlsfiles.Files) (addr string, told *heard) {
	t.Helper()
	told = &heard{}
	config, err := files.Server(told.tell)
	require.NoError(t, err)
	listener, err := tls.Listen("tcp", "127.0.0.1:0", config)
	require.NoError(t, err)
	t.Cleanup(func() { _ = listener.Close() })
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			go func() {
				_, _ = conn.Write([]byte{1})
				_ = conn.Close()
			}()
		}
	}()
	return listener.Addr().String(), told
}

// connect returns the name in the server's certificate, or the explained error.
func connect(t *testing.T, files tlsfiles.Files, addr string) (string, error) {
	t.Helper()
	config, err := files.Client()
	if err != nil {
		return "", err
	}
	conn, err := (&tls.Dialer{Config: config}).DialContext(t.Context(), "tcp", addr)
	if err != nil {
		return "", files.Explain(err, addr)
	}
	defer conn.Close()
	if _, err := io.ReadFull(conn, make([]byte, 1)); err != nil {
		return "", files.Explain(err, addr)
	}
	secure, _ := conn.(*tls.Conn)
	return secure.ConnectionState().PeerCertificates[0].Subject.CommonName, nil
}

func TestReplacedFilesCountFromTheNextConnection(t *testing.T) {
	t.Parallel()
	old, young := testkit.NewAuthority(t), testkit.NewAuthority(t)
	server, client := old.Issue(t, testkit.Certificate{Name: "before"}), old.Issue(t, testkit.Certificate{})
	trusted := filepath.Join(t.TempDir(), "ca.pem")
	trust := func(a *testkit.Authority) {
		text, err := os.ReadFile(a.File)
		require.NoError(t, err)
		require.NoError(t, os.WriteFile(trusted, text, 0o600))
	}
	trust(old)
	addr, told := serve(t, tlsfiles.Files{CA: trusted, Cert: server.Cert, Key: server.Key})
	files := tlsfiles.Files{CA: trusted, Cert: client.Cert, Key: client.Key}
	name, err := connect(t, files, addr)
	require.NoError(t, err)
	require.Equal(t, "before", name)

	young.IssueInto(t, server, testkit.Certificate{Name: "after"})
	_, err = connect(t, files, addr)
	require.ErrorContains(t, err, "is signed by none of the authorities in "+trusted)
	trust(young)
	_, err = connect(t, files, addr)
	require.ErrorContains(t, err, "does not trust the certificate in "+client.Cert, "the listener has read its authorities anew, too")
	young.IssueInto(t, client, testkit.Certificate{})
	name, err = connect(t, files, addr)
	require.NoError(t, err)
	require.Equal(t, "after", name)
	require.Empty(t, told.all())
}

// Whoever replaces two files one after the other, or half of one, does not stop a listener.
func TestAListenerGoesOnWithWhatItHad(t *testing.T) {
	t.Parallel()
	authority := testkit.NewAuthority(t)
	server := authority.Issue(t, testkit.Certificate{Name: "before"})
	addr, told := serve(t, tlsfiles.Files{Cert: server.Cert, Key: server.Key})
	files := tlsfiles.Files{CA: authority.File}
	require.NoError(t, os.WriteFile(server.Key, []byte("half a k"), 0o600))
	for range 3 {
		shows(t, files, addr, "before")
	}
	require.Len(t, told.all(), 1, "once per change")
	require.Contains(t, told.all()[0], "are not a certificate and its key in PEM form: tls: failed to find any PEM data in key input; going on with what it held before")
	authority.IssueInto(t, server, testkit.Certificate{Name: "after"})
	shows(t, files, addr, "after")
	require.Equal(t, "<nil>", told.all()[1])
}

// shows connects, and is shown a certificate of this name.
func shows(t *testing.T, files tlsfiles.Files, addr, want string) {
	t.Helper()
	name, err := connect(t, files, addr)
	require.NoError(t, err)
	require.Equal(t, want, name)
}

// What has expired, or is not valid yet, takes the place of nothing that is valid; when nothing is, it is shown, and the listener says so.
func TestAListenerKeepsWhatIsValid(t *testing.T) {
	t.Parallel()
	authority := testkit.NewAuthority(t)
	server := authority.Issue(t, testkit.Certificate{Name: "before"})
	var ahead atomic.Int64
	addr, told := serve(t, tlsfiles.Files{Cert: server.Cert, Key: server.Key, Now: func() time.Time { return time.Now().Add(time.Duration(ahead.Load())) }})
	files := tlsfiles.Files{CA: authority.File}
	authority.IssueInto(t, server, testkit.Certificate{Name: "expired", Expired: true})
	for range 3 {
		shows(t, files, addr, "before")
	}
	authority.IssueInto(t, server, testkit.Certificate{Name: "early", Early: true})
	for range 3 {
		shows(t, files, addr, "before")
	}
	require.Len(t, told.all(), 2, "once per change")
	require.Regexp(t, "^the certificate in cert_file .* has expired, it was valid until .*: have it renewed; going on with what it held before$", told.all()[0])
	require.Regexp(t, "^the certificate in cert_file .* is not valid before .*; going on with what it held before$", told.all()[1])
	ahead.Store(int64(90 * time.Minute)) // its time has come, though not by the clock of the client
	_, err := connect(t, files, addr)
	require.ErrorContains(t, err, "have it renewed, or set this machine's clock")
	require.Equal(t, "<nil>", told.all()[2])
	ahead.Store(int64(48 * time.Hour))
	_, err = connect(t, files, addr)
	require.Error(t, err)
	require.Regexp(t, "has expired, .*: have it renewed$", told.all()[3], "there is no better one")
	authority.IssueInto(t, server, testkit.Certificate{Name: "also expired"})
	shows(t, files, addr, "also expired")
}

func TestWhatIsWrongWithAHandshake(t *testing.T) {
	t.Parallel()
	authority, other := testkit.NewAuthority(t), testkit.NewAuthority(t)
	good, foreign, over := authority.Issue(t, testkit.Certificate{}), other.Issue(t, testkit.Certificate{}), authority.Issue(t, testkit.Certificate{Expired: true})
	elsewhere := authority.Issue(t, testkit.Certificate{Hosts: []string{"db.example.org", "10.1.2.3"}})
	client := tlsfiles.Files{CA: authority.File, Cert: good.Cert, Key: good.Key, ServerNameKey: "server_name"}
	for name, tt := range map[string]struct {
		server, client tlsfiles.Files
		want           string
	}{
		"good":               {tlsfiles.Files{CA: authority.File, Cert: good.Cert, Key: good.Key}, client, ""},
		"unknown authority":  {tlsfiles.Files{Cert: foreign.Cert, Key: foreign.Key}, client, "is signed by none of the authorities in " + authority.File + ": name the file of its authority as ca_file"},
		"the system's":       {tlsfiles.Files{Cert: good.Cert, Key: good.Key}, tlsfiles.Files{}, "is signed by none of the authorities in the system's store"},
		"expired":            {tlsfiles.Files{Cert: over.Cert, Key: over.Key}, client, "have it renewed, or set this machine's clock"},
		"other host":         {tlsfiles.Files{Cert: elsewhere.Cert, Key: elsewhere.Key}, client, `the certificate is for "db.example.org, 10.1.2.3" and not for 127.0.0.1: connect by one of its names, or set server_name`},
		"named":              {tlsfiles.Files{Cert: elsewhere.Cert, Key: elsewhere.Key}, tlsfiles.Files{CA: authority.File, ServerName: "db.example.org"}, ""},
		"no certificate":     {tlsfiles.Files{CA: authority.File, Cert: good.Cert, Key: good.Key}, tlsfiles.Files{CA: authority.File}, "wants a client certificate: set cert_file and key_file"},
		"untrusted client":   {tlsfiles.Files{CA: authority.File, Cert: good.Cert, Key: good.Key}, tlsfiles.Files{CA: authority.File, Cert: foreign.Cert, Key: foreign.Key}, "does not trust the certificate in " + foreign.Cert},
		"client has expired": {tlsfiles.Files{CA: authority.File, Cert: good.Cert, Key: good.Key}, tlsfiles.Files{CA: authority.File, Cert: over.Cert, Key: over.Key}, "the certificate in " + over.Cert},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			addr, _ := serve(t, tt.server)
			_, err := connect(t, tt.client, addr)
			if tt.want == "" {
				require.NoError(t, err)
				return
			}
			require.ErrorContains(t, err, tt.want)
		})
	}
}

func TestAPortWithoutTLS(t *testing.T) {
	t.Parallel()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	server := &http.Server{}
	go func() { _ = server.Serve(listener) }()
	t.Cleanup(func() { _ = server.Close() })
	_, err = connect(t, tlsfiles.Files{}, listener.Addr().String())
	require.ErrorContains(t, err, "speaks no TLS on this port")
}

func TestOldVersionsAreRefused(t *testing.T) {
	t.Parallel()
	authority := testkit.NewAuthority(t)
	pair := authority.Issue(t, testkit.Certificate{})
	addr, _ := serve(t, tlsfiles.Files{Cert: pair.Cert, Key: pair.Key})
	config, err := tlsfiles.Files{CA: authority.File}.Client()
	require.NoError(t, err)
	config.MinVersion, config.MaxVersion = tls.VersionTLS10, tls.VersionTLS11
	_, err = (&tls.Dialer{Config: config}).DialContext(t.Context(), "tcp", addr)
	require.ErrorContains(t, err, "protocol version not supported")
}

func TestUnusableFilesAreNamed(t *testing.T) {
	t.Parallel()
	authority := testkit.NewAuthority(t)
	pair, other := authority.Issue(t, testkit.Certificate{}), authority.Issue(t, testkit.Certificate{})
	empty := filepath.Join(t.TempDir(), "empty")
	require.NoError(t, os.WriteFile(empty, nil, 0o600))
	for want, files := range map[string]tlsfiles.Files{
		"ca_file cannot be read: open /no/such/ca: ":                        {CA: "/no/such/ca"},
		"ca_file " + empty + " holds no certificate in PEM form":            {CA: empty},
		"ca_file " + pair.Key + " holds no certificate":                     {CA: pair.Key},
		"cert_file cannot be read: open /no/such/cert: ":                    {Cert: "/no/such/cert", Key: pair.Key},
		"key_file cannot be read: open /no/such/key: ":                      {Cert: pair.Cert, Key: "/no/such/key"},
		"cert_file and key_file belong together":                            {Cert: pair.Cert},
		"cert_file " + pair.Cert + " and key_file " + other.Key + " are no": {Cert: pair.Cert, Key: other.Key},
	} {
		require.ErrorContains(t, files.Check(), want)
		if files.Cert != "" {
			_, err := files.Server(nil)
			require.ErrorContains(t, err, want)
		}
	}
	_, err := tlsfiles.Files{}.Server(nil)
	require.ErrorContains(t, err, "needs cert_file and key_file")
	require.NoError(t, tlsfiles.Files{}.Check())
}

func TestOtherErrorsAreLeftAlone(t *testing.T) {
	t.Parallel()
	require.NoError(t, tlsfiles.Files{}.Explain(nil, "h"))
	for _, err := range []error{errors.New("x"), context.Canceled, &net.OpError{Op: "read", Err: errors.New("tls: bad certificate")}} {
		require.Equal(t, err, tlsfiles.Files{}.Explain(err, "h"))
	}
}
