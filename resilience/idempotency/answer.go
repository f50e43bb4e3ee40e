package idempotency

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"time"
	"unicode/utf8"
)

const (
	// HeaderRetention says for how many seconds from now the key is remembered, at least.
	HeaderRetention = "Idempotency-Retention"
	// HeaderReplayed is "true" on an answer that an earlier request brought about.
	HeaderReplayed = "Idempotent-Replayed"
)

// maxHeaders bounds the stored header of an answer, as JSON, in bytes.
const maxHeaders = 8 << 10

// Answer is what a handler answers. With a nil error it is final and remembered, whatever its status is.
type Answer struct {
	// Status from 200 to 599. Default: 200.
	Status int
	// Header is remembered with the answer. It cannot set cookies, nor what belongs to the connection.
	Header http.Header
	// Body is at most as long as the store's MaxAnswer says.
	Body []byte
	// Pending: the outcome is not known yet, and this answer says so; 202 is the status for it. Whoever asks again gets it
	// until [Steps] or [Store.Resolve] bring the final one.
	Pending bool
	// Forget commits what the handler did, and leaves the key free: the next try runs the handler again. It is for what
	// certainly had no effect but must be recorded.
	Forget bool
}

// JSON is an answer with value as its body. It panics when value is no JSON, which is the program's fault.
func JSON(status int, value any) Answer {
	body, err := json.Marshal(value)
	if err != nil {
		panic(fmt.Sprintf("idempotency: %v", err))
	}
	return Answer{Status: status, Header: http.Header{"Content-Type": {"application/json"}}, Body: append(body, '\n')}
}

// unstored headers belong to one connection or one person, or are written by the server.
var unstored = []string{
	"Connection", "Content-Length", "Date", "Keep-Alive", "Set-Cookie", "Te", "Trailer", "Transfer-Encoding", "Upgrade", "X-Request-Id",
	HeaderRetention, HeaderReplayed,
}

// row is an answer as the table keeps it.
type row struct {
	pending bool
	forget  bool // not kept at all
	status  int
	headers *string
	body    []byte
}

// encode refuses what could not be answered again in the same way.
func (s *Store) encode(a Answer) (row, error) {
	if a.Status == 0 {
		a.Status = http.StatusOK
	}
	if a.Pending && a.Forget {
		return row{}, errors.New("answer is pending and to be forgotten; it can be one of them")
	}
	if a.Status < 200 || a.Status > 599 {
		return row{}, fmt.Errorf("answer has status %d; use 200 to 599", a.Status)
	}
	if len(a.Body) > s.options.MaxAnswer {
		return row{}, fmt.Errorf("answer has %d bytes, more than %d; raise MaxAnswer, or answer with where the rest is", len(a.Body), s.options.MaxAnswer)
	}
	headers, err := encodeHeader(a.Header)
	if err != nil {
		return row{}, err
	}
	return row{pending: a.Pending, forget: a.Forget, status: a.Status, headers: headers, body: slices.Clone(a.Body)}, nil
}

func encodeHeader(h http.Header) (*string, error) {
	if len(h) == 0 {
		return nil, nil
	}
	for name, values := range h {
		if slices.Contains(unstored, http.CanonicalHeaderKey(name)) {
			return nil, fmt.Errorf("answer has header %q, which cannot be remembered; leave it out", name)
		}
		for _, value := range values {
			if !utf8.ValidString(value) {
				return nil, fmt.Errorf("answer has header %q with a value that is not UTF-8", name)
			}
		}
	}
	text, err := json.Marshal(h)
	if err != nil {
		return nil, fmt.Errorf("encode headers of an answer: %w", err)
	}
	if len(text) > maxHeaders {
		return nil, fmt.Errorf("answer has %d bytes of headers, more than %d", len(text), maxHeaders)
	}
	stored := string(text)
	return &stored, nil
}

// outcome is what a request is answered with, and the others with its key.
type outcome struct {
	row
	hash     [32]byte
	kept     time.Duration // from now
	replayed bool
}

// errUnreadable is a row that no version of this package writes.
var errUnreadable = errors.New("stored answer cannot be read")

func (o outcome) write(w http.ResponseWriter) error {
	var header http.Header
	if o.headers != nil && json.Unmarshal([]byte(*o.headers), &header) != nil {
		return errUnreadable
	}
	to := w.Header()
	for name, values := range header {
		to[http.CanonicalHeaderKey(name)] = values
	}
	if !o.forget {
		to.Set(HeaderRetention, strconv.FormatInt(max(int64(o.kept/time.Second), 0), 10))
	}
	if o.replayed {
		to.Set(HeaderReplayed, "true")
	}
	w.WriteHeader(o.status)
	_, _ = w.Write(o.body) // the client is gone, and can ask again
	return nil
}
