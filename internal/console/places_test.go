package console_test

import (
	"bufio"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/surefoot-mq/surefoot/internal/console"
	"github.com/surefoot-mq/surefoot/internal/testkit"
)

// from makes requests from another address of this machine.
func from(addr string) *http.Transport {
	dialer := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(addr)}}
	return &http.Transport{DisableKeepAlives: true, DialContext: dialer.DialContext}
}

// opens asks for the stream of an open page, which stays until the test ends if there is a place.
func (s *stage) opens(way http.RoundTripper, who ...func(*http.Request)) answer {
	s.Helper()
	response, err := way.RoundTrip(s.request(http.MethodGet, "/live", nil, who...))
	require.NoError(s, err)
	s.Cleanup(func() { _ = response.Body.Close() })
	if response.StatusCode == http.StatusOK {
		return answer{status: http.StatusOK}
	}
	return s.read(response)
}

func (s *stage) read(response *http.Response) answer {
	s.Helper()
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	require.NoError(s, err)
	return answer{response.StatusCode, response.Header, string(text)}
}

// gets asks for a page on a way of its own.
func (s *stage) gets(way http.RoundTripper, path string) answer {
	s.Helper()
	response, err := way.RoundTrip(s.request(http.MethodGet, path, nil))
	require.NoError(s, err)
	return s.read(response)
}

// refusal is what an answer of 429 says.
func refusal(t testing.TB, a answer) string {
	t.Helper()
	require.Equal(t, http.StatusTooManyRequests, a.status)
	require.NotEmpty(t, a.head.Get("Retry-After"))
	return a.body
}

// One address, or one person from wherever, has not all streams.
func TestOneViewerDoesNotTakeAllStreams(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	for range console.MaxStreamsEach {
		require.Equal(t, http.StatusOK, s.opens(from("127.0.0.1")).status)
	}
	require.Equal(t, "you have too many open pages: close some\n", refusal(t, s.opens(from("127.0.0.1"))))
	require.Equal(t, http.StatusOK, s.opens(from("127.0.0.2")).status)

	s = newStage(t, withLogin(t))
	here, there, other := s.as("vic"), s.as("vic"), s.as("olga")
	for range console.MaxStreamsEach / 2 {
		require.Equal(t, http.StatusOK, s.opens(from("127.0.0.1"), here).status)
		require.Equal(t, http.StatusOK, s.opens(from("127.0.0.2"), there).status)
	}
	refusal(t, s.opens(from("127.0.0.3"), here))
	require.Equal(t, http.StatusOK, s.opens(from("127.0.0.1"), other).status, "another person at the same address")
}

// Requests that do not come to their end keep nobody at another address from the pages.
func TestOneViewerDoesNotTakeAllRequests(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	for range console.MaxRequestsEach {
		conn, err := net.Dial("tcp", strings.TrimPrefix(s.base, "http://"))
		require.NoError(t, err)
		t.Cleanup(func() { _ = conn.Close() })
		_, err = io.WriteString(conn, "POST /queues/pause HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/x-www-form-urlencoded\r\nContent-Length: 99\r\nExpect: 100-continue\r\n\r\n")
		require.NoError(t, err)
		line, err := bufio.NewReader(conn).ReadString('\n') // the server asks for the body: it waits for it from now on
		require.NoError(t, err)
		require.Contains(t, line, "100 Continue")
	}
	require.Equal(t, "you make too many requests at a time\n", refusal(t, s.gets(from("127.0.0.1"), "/")))
	require.Equal(t, http.StatusOK, s.gets(from("127.0.0.2"), "/").status)
}

// Looks into queues that hang keep nobody else from looking.
func TestOneViewerDoesNotTakeAllLooks(t *testing.T) {
	t.Parallel()
	var broker *testkit.FaultyNetwork
	s := newStage(t, func(o *console.Options) {
		broker = testkit.Proxy(t, o.AMQPURL)
		o.AMQPURL = broker.Through(t, o.AMQPURL)
	})
	const page = "/dead/letters?queue=" + work
	look := func(addr string, text chan<- string) {
		r := s.request(http.MethodGet, page, nil)
		go func() {
			response, err := from(addr).RoundTrip(r)
			if err != nil {
				text <- err.Error()
				return
			}
			defer response.Body.Close()
			body, _ := io.ReadAll(response.Body)
			text <- string(body)
		}()
	}
	broker.HalfOpenAnswers(t) // nothing comes from it
	mine, other := make(chan string, console.MaxLooksEach+1), make(chan string, 1)
	for range console.MaxLooksEach + 1 {
		look("127.0.0.1", mine)
	}
	require.Contains(t, <-mine, "your other pages look into queues right now; try again")
	look("127.0.0.2", other)
	broker.Heal(t)
	text := <-other
	require.Contains(t, text, "Messages in "+dlq)
	require.NotContains(t, text, "right now")
}
