package console

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/surefoot-mq/surefoot/deadletter"
	"github.com/surefoot-mq/surefoot/internal/audit"
)

const auditLimit = 100

type auditData struct {
	Operation, Message, Who, Action, Target, Since string
	Single                                         bool // entries of single messages too
	Items                                          []audit.Item
	Limited                                        bool
}

func (c *Console) auditPage(r *http.Request) (found, error) {
	q := r.URL.Query()
	text := func(name string) string { return strings.TrimSpace(q.Get(name)) }
	d := auditData{
		Operation: text("operation"), Message: text("message"), Who: text("who"), Action: text("action"), Target: text("target"),
		Since: text("since"), Single: q.Get("messages") == "1",
	}
	f := audit.Filter{
		MessageID: d.Message, Who: d.Who, Action: d.Action, Target: d.Target, Limit: auditLimit,
		Operations: !d.Single && d.Message == "" && d.Operation == "",
	}
	if d.Operation != "" {
		id, err := deadletter.OperationOf(d.Operation)
		if err != nil {
			return found{}, err
		}
		f.Operation = uuid.NullUUID{UUID: id, Valid: true}
	}
	var err error
	if f.Since, err = deadletter.ParseSince(d.Since, time.Now()); err != nil {
		return found{}, err
	}
	ctx, cancel := context.WithTimeout(r.Context(), pageTimeout)
	defer cancel()
	if d.Items, err = audit.List(ctx, c.opts.Pool, c.opts.Schema, f); err != nil {
		return found{}, fmt.Errorf("the audit cannot be read: %w", err)
	}
	d.Limited = len(d.Items) == auditLimit
	return found{title: "Audit", data: d}, nil
}
