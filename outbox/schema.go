package outbox

import (
	"context"
	"fmt"

	"github.com/surefoot-mq/surefoot/internal/pg"
)

type schemaKey struct{}

// WithSchema returns a context in which [Enqueue], and every [Outbox] without a Schema of its own, write into this
// schema; empty stands for "surefoot". The consumer hands such a context to its handlers, so that an event joins the
// outbox beside the inbox that its cause is in. Programs whose schema has another name set it once, and tests of
// producers per test. A name that cannot be a schema is refused by Enqueue.
func WithSchema(ctx context.Context, schema string) context.Context {
	return context.WithValue(ctx, schemaKey{}, pg.Schema(schema))
}

// schema is the outbox's own, else the context's. What comes from there was checked by nobody.
func (o *Outbox) schema(ctx context.Context) (string, error) {
	if o.options.Schema != "" {
		return o.options.Schema, nil
	}
	schema, _ := ctx.Value(schemaKey{}).(string)
	if err := pg.CheckSchema(schema); err != nil {
		return "", fmt.Errorf("enqueue: %w", err)
	}
	return pg.Schema(schema), nil
}
