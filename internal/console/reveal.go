package console

import (
	"fmt"
	"net/http"

	"github.com/surefoot-mq/surefoot/deadletter"
	"github.com/surefoot-mq/surefoot/internal/audit"
)

// reveal shows one message as it is, once its audit has who, why and from where.
func (p *pages) reveal(w http.ResponseWriter, r *http.Request) {
	r, end, read := p.patient(w, r, "/dead")
	if !read {
		return
	}
	defer end()
	f, err := p.c.revealed(r)
	if err != nil {
		p.fail(w, r, "/dead", err)
		return
	}
	p.write(w, r, http.StatusOK, "letter", "/dead", f)
}

func (c *Console) revealed(r *http.Request) (found, error) {
	reason, err := reasonOf(r)
	if err != nil {
		return found{}, err
	}
	d := letterData{Queue: queueOf(r.URL.Query()), ID: r.URL.Query().Get("id"), Payload: true, Revealed: true}
	f, err := c.letter(r, d)
	if err != nil {
		return found{}, err
	}
	op := audit.NewOperation(c.who(r), "dlq reveal", deadletter.DLQ(d.Queue), reason)
	op.Origin = c.origin()
	if err := audit.Write(r.Context(), c.opts.Pool, c.opts.Schema, op, audit.Entry{Outcome: "revealed 1 message"}, audit.Entry{MessageID: d.ID, Outcome: "revealed"}); err != nil {
		return found{}, fmt.Errorf("it cannot be audited, and so is not shown: %w", err)
	}
	return f, nil
}
