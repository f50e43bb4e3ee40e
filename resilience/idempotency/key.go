package idempotency

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"unicode/utf8"

	"github.com/google/uuid"

	"github.com/surefoot-mq/surefoot/resilience"
	"github.com/surefoot-mq/surefoot/resilience/httpserver"
)

// HeaderKey carries the key of an operation. It may be in quotes, as the draft wants it, or bare, as most clients send it;
// "a" and a are the same key.
const HeaderKey = "Idempotency-Key"

const maxKey = 255

// Key is what a request is remembered by.
type Key struct {
	// Caller who sent it.
	Caller string
	// Key that the caller gave it.
	Key string
}

type keyContext struct{}

// KeyFrom returns the key of the request that a handler works on: to hand it on to a service that wants one.
func KeyFrom(ctx context.Context) (Key, bool) {
	k, ok := ctx.Value(keyContext{}).(Key)
	return k, ok
}

// id is the head of a hash, which keeps the index small. A caller has no NUL in it.
func (k Key) id() uuid.UUID {
	sum := sha256.Sum256([]byte(k.Caller + "\x00" + k.Key))
	return uuid.UUID(sum[:16])
}

// request is what came, read whole.
type request struct {
	*http.Request
	key  Key
	id   uuid.UUID
	hash [sha256.Size]byte
	body []byte

	unknown error // a commit that was not answered, until it is known what became of it
}

// errCaller is the program's fault: it must say who asks before it asks for a key.
var errCaller = errors.New("idempotency: Caller must return 1 to 255 bytes of UTF-8 without NUL")

func (s *Store) read(w http.ResponseWriter, r *http.Request) (*request, error) {
	caller, err := s.options.Caller(r)
	if err != nil {
		return nil, err
	}
	if caller == "" || len(caller) > maxKey || !utf8.ValidString(caller) || strings.ContainsRune(caller, 0) {
		return nil, errCaller
	}
	key, ok := parseKey(r.Header.Values(HeaderKey))
	if !ok {
		return nil, &httpserver.Problem{Code: resilience.CodeIdempotencyKeyMissing}
	}
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, s.options.MaxBody))
	if err != nil {
		return nil, fmt.Errorf("read request: %w", err)
	}
	k := Key{Caller: caller, Key: key}
	ctx := context.WithValue(r.Context(), keyContext{}, k)
	return &request{Request: r.WithContext(ctx), key: k, id: k.id(), hash: fingerprint(r, body), body: body}, nil
}

// again is the request for another run of the handler.
func (r *request) again() *http.Request {
	r.Body = io.NopCloser(bytes.NewReader(r.body))
	return r.Request
}

// fingerprint tells requests apart: by method, path, query and body, byte for byte. NUL cannot be in the first three.
func fingerprint(r *http.Request, body []byte) [sha256.Size]byte {
	h := sha256.New()
	_, _ = io.WriteString(h, r.Method+"\x00"+r.URL.EscapedPath()+"\x00"+r.URL.RawQuery+"\x00") // a hash takes everything
	_, _ = h.Write(body)
	return [sha256.Size]byte(h.Sum(nil))
}

// parseKey takes the one value of the header, bare or as a quoted string (RFC 9651).
func parseKey(values []string) (string, bool) {
	if len(values) != 1 {
		return "", false
	}
	key := strings.TrimSpace(values[0])
	if strings.HasPrefix(key, `"`) {
		return unquote(key)
	}
	for i := range len(key) {
		if key[i] <= ' ' || key[i] > '~' {
			return "", false
		}
	}
	return key, key != "" && len(key) <= maxKey
}

func unquote(s string) (string, bool) {
	var key strings.Builder
	for i := 1; i < len(s); i++ {
		switch c := s[i]; {
		case c == '"':
			return key.String(), i == len(s)-1 && key.Len() > 0 && key.Len() <= maxKey
		case c == '\\' && i+1 < len(s) && (s[i+1] == '"' || s[i+1] == '\\'):
			i++
			key.WriteByte(s[i])
		case c == '\\' || c < ' ' || c > '~':
			return "", false
		default:
			key.WriteByte(c)
		}
	}
	return "", false
}
