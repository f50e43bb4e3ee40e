package idempotency

import (
	"context"
	"net/http"
	"net/http/httptest"

	"github.com/jackc/pgx/v5"
)

// Clean is one cycle of Run.
func (s *Store) Clean(ctx context.Context, batch int) error { return s.clean(ctx, batch) }

// ParseKey reads the header.
var ParseKey = parseKey

// Try returns the error that a request meets.
func (s *Store) Try(r *http.Request) error {
	in, err := s.read(httptest.NewRecorder(), r)
	if err != nil {
		return err
	}
	_, err = s.start(r.Context(), in, func(context.Context, pgx.Tx, *http.Request) (Answer, error) { return Answer{}, nil })
	return err
}
