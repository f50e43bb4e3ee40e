package httpserver_test

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"

	"github.com/surefoot-mq/surefoot/internal/testkit"
	"github.com/surefoot-mq/surefoot/resilience"
	"github.com/surefoot-mq/surefoot/resilience/httpserver"
)

func TestMain(m *testing.M) { testkit.Main(m) }

// errSecret must stand in no answer.
var errSecret = errors.New("password=hunter2 at 10.0.0.7")

// newServer serves a handler with the given options over real TCP. The buffer has its log.
func newServer(t *testing.T, handler http.Handler, change ...func(*httpserver.Options)) (*httptest.Server, *testkit.Buffer) {
	t.Helper()
	log := new(testkit.Buffer)
	o := httpserver.Options{Handler: handler, Logger: zerolog.New(io.MultiWriter(testkit.LogWriter(t), log))}
	for _, c := range change {
		c(&o)
	}
	s, err := httpserver.New(o)
	require.NoError(t, err)
	server := httptest.NewServer(s)
	t.Cleanup(server.Close)
	return server, log
}

// answer is what a client sees.
type answer struct {
	*http.Response
	body string
}

// problem is the answer's JSON, which must be a problem with the request's id.
func (a answer) problem(t *testing.T, code resilience.Code) map[string]any {
	t.Helper()
	require.Equal(t, "application/problem+json", a.Header.Get("Content-Type"), a.body)
	var members map[string]any
	require.NoError(t, json.Unmarshal([]byte(a.body), &members), a.body)
	require.EqualValues(t, code, members["code"], a.body)
	require.EqualValues(t, a.StatusCode, members["status"])
	require.Equal(t, a.Header.Get(httpserver.HeaderRequestID), members["requestId"])
	return members
}

// ask is send for other goroutines than the test's.
func ask(ctx context.Context, server *httptest.Server, method, path string, body io.Reader, header ...string) (answer, error) {
	request, err := http.NewRequestWithContext(ctx, method, server.URL+path, body)
	if err != nil {
		return answer{}, err
	}
	for i := 0; i < len(header); i += 2 {
		request.Header.Set(header[i], header[i+1])
	}
	response, err := server.Client().Do(request)
	if err != nil {
		return answer{}, err
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	return answer{response, string(text)}, err
}

func send(t *testing.T, server *httptest.Server, method, path string, body io.Reader, header ...string) answer {
	t.Helper()
	got, err := ask(t.Context(), server, method, path, body, header...)
	require.NoError(t, err)
	return got
}

func get(t *testing.T, server *httptest.Server, path string, header ...string) answer {
	t.Helper()
	return send(t, server, http.MethodGet, path, http.NoBody, header...)
}

func failing(err error) http.Handler {
	return httpserver.Handler(func(http.ResponseWriter, *http.Request) error { return err })
}

func lineWith(t *testing.T, log *testkit.Buffer, text string) map[string]any {
	t.Helper()
	for line := range strings.SplitSeq(log.String(), "\n") {
		if strings.Contains(line, text) {
			var fields map[string]any
			require.NoError(t, json.Unmarshal([]byte(line), &fields))
			return fields
		}
	}
	require.Fail(t, "no such line in the log", "%s in %s", text, log)
	return nil
}
