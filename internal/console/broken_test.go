package console_test

import (
	"bufio"
	"context"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// Another console has started the plan that this page offers to drop: it goes on, and nobody is told that it does not.
func TestARunIsNotDropped(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	s.consume(func(string) error { return nil })
	for _, id := range names("m", 20) {
		s.fill(letter(id, "order.paid", "transient", "503"))
	}
	id := runIn(s, s.follow("/redrive", "queue", work, "rate", "2", "reason", "slowly"))
	s.follow("/run/start", "id", id)
	a := s.post("/run/drop", "id", id)
	require.Equal(t, http.StatusConflict, a.status, a.body)
	require.Contains(t, a.body, "nothing was dropped, it is running")
	s.follow("/run/cancel", "id", id, "reason", "enough")
}

// What no store takes is no service that is away, and a limit that cannot be kept is not accepted.
func TestFormsAndFiltersThatCannotBe(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	for _, rate := range []string{"NaN", "nan", "Inf", "-Inf", "1e999", "0"} {
		require.Equal(t, http.StatusBadRequest, s.post("/redrive", "queue", work, "reason", "try", "rate", rate).status, rate)
	}
	require.Equal(t, http.StatusBadRequest, s.post("/redrive", "queue", work, "reason", "try", "max-failures", "99999999999").status)
	for _, text := range []string{"%00", "%ff"} {
		for _, path := range []string{"/runs?queue=", "/outbox?key=", "/outbox?type=", "/audit?who=", "/audit?target=", "/audit?action=", "/dead/letter?id=1&queue=", "/dead/discard?queue="} {
			a := s.get(path + text)
			require.Equal(t, http.StatusBadRequest, a.status, "%s: %s", path+text, a.body)
			require.NotContains(t, a.body, `id="error" data-live`, "it does not pass")
		}
	}
	require.Equal(t, http.StatusBadRequest, s.post("/outbox/retry", "id", "a\x00b", "reason", "r").status)
}

// A redrive whose beginning the database does not tell is not said to have begun.
func TestARedriveThatHasNotBegun(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	s.consume(func(string) error { return nil })
	s.fill(letter("m1", "order.paid", "transient", "503"))
	id := runIn(s, s.follow("/redrive", "queue", work, "ramp", "", "reason", "try"))
	tx, err := s.db.Pool.Begin(t.Context())
	require.NoError(t, err)
	defer func() { _ = tx.Rollback(context.WithoutCancel(t.Context())) }() // else a failure waits for it for ever
	_, err = tx.Exec(t.Context(), `SELECT FROM `+s.db.Schema+`.dlq_runs WHERE id = $1 FOR UPDATE`, id)
	require.NoError(t, err)
	a := s.post("/run/start", "id", id)
	require.Equal(t, http.StatusServiceUnavailable, a.status)
	require.Contains(t, a.body, "It is not known whether this was done")
	require.Contains(t, a.body, "has not begun yet")
	require.NoError(t, tx.Rollback(t.Context()))
	s.see("/run?id="+id, `id="moved">1<`)
}

// A form that does not come keeps its place for as long as any request, and not for as long as a change.
func TestASlowFormIsCutOff(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	conn, err := new(net.Dialer).DialContext(ctx, "tcp", strings.TrimPrefix(s.base, "http://"))
	require.NoError(t, err)
	defer conn.Close()
	require.NoError(t, conn.SetDeadline(time.Now().Add(patience)))
	_, err = conn.Write([]byte("POST /queues/pause HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/x-www-form-urlencoded\r\nContent-Length: 100\r\n\r\nqueue="))
	require.NoError(t, err)
	response, err := http.ReadResponse(bufio.NewReader(conn), nil)
	require.NoError(t, err)
	defer response.Body.Close()
	require.Equal(t, http.StatusRequestTimeout, response.StatusCode)
}
