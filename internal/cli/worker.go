package cli

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/surefoot-mq/surefoot/consumer"
	"github.com/surefoot-mq/surefoot/consumer/endpoint"
	"github.com/surefoot-mq/surefoot/consumer/program"
	"github.com/surefoot-mq/surefoot/internal/workercheck"
	"github.com/surefoot-mq/surefoot/message"
	"github.com/surefoot-mq/surefoot/resilience"
	"github.com/surefoot-mq/surefoot/resilience/policy"
	"github.com/surefoot-mq/surefoot/topology"
)

func workerCommand(s *session) *cobra.Command {
	return noun("worker", "Test workers in other languages, and practise with one that fails", workerCheck(s), workerPractice(s))
}

// workerChecker hands test messages to a worker.
type workerChecker struct {
	session     *session
	queue       string
	target      topology.HTTPTarget
	typ, body   string
	contentType string
	timeout     time.Duration
}

func workerCheck(s *session) *cobra.Command {
	c := &workerChecker{session: s}
	cmd := &cobra.Command{
		Use: "check (--url URL | --queue Q | -- PROGRAM ARG...)", Short: "Hand test messages to a worker, and tell whether it keeps the contract of docs/workers.md",
		Long: "Hand test messages to a worker, straight and without broker or database: to the endpoint of --url, to the target that the\n" +
			"configuration gives --queue, or to a program that stays and speaks JSON lines. The first message must be done, and so must a\n" +
			"repeat of it, with the same events; then come messages that a worker may refuse but must not trip over, and, where requests\n" +
			"are signed or have a token, forged ones that it must refuse with 401 or 403.\n\n" +
			"The worker works on these messages: give it a place where that does no harm. Their ids begin with surefoot-check-, their source is\n" +
			"\"surefoot worker check\". Events are looked at and enqueued nowhere.\n\n" +
			"Exits 0 when every check is ok, 6 when one has failed, 5 when the worker cannot be reached.",
		RunE: func(cmd *cobra.Command, args []string) error { return c.run(cmd.Context(), args) },
	}
	flags := cmd.Flags()
	flags.StringVar(&c.target.URL, "url", "", "the `URL` of the endpoint")
	flags.StringVar(&c.queue, "queue", "", "the target of this `queue` in the configuration")
	flags.StringVar(&c.typ, "type", "surefoot.check", "`type` of a message that it handles")
	flags.StringVar(&c.body, "body", "", "read the body of such a message from this `file`; default: {}")
	flags.StringVar(&c.contentType, "content-type", message.DefaultContentType, "content type of that body")
	flags.StringVar(&c.target.BearerFile, "bearer-file", "", "`file` with a token to send as authorization")
	flags.StringVar(&c.target.SigningKeyFile, "signing-key-file", "", "`file` with the key to sign with")
	flags.StringVar(&c.target.CAFile, "ca-file", "", "PEM `file` of trusted authorities")
	flags.StringVar(&c.target.CertFile, "cert-file", "", "PEM `file` with a client certificate")
	flags.StringVar(&c.target.KeyFile, "key-file", "", "PEM `file` with its key")
	flags.DurationVar(&c.timeout, "timeout", 0, "of one message; default: the queue's handler_timeout, else 30s")
	s.outputFlag(cmd)
	return cmd
}

func (c *workerChecker) run(ctx context.Context, args []string) error {
	target, err := c.chosen(args)
	if err != nil {
		return err
	}
	o := workercheck.Options{Sample: message.Message{Type: c.typ, ContentType: c.contentType, Payload: []byte("{}")}, Timeout: c.timeout}
	if c.body != "" {
		if o.Sample.Payload, err = os.ReadFile(c.body); err != nil {
			return usageErrorf("", "read the body: %w", err)
		}
	}
	if err := o.Sample.Validate(0); err != nil {
		return usageErrorf("", "%w", err)
	}
	if err := c.connect(&o, target); err != nil {
		return usageErrorf("", "%w", err)
	}
	results, err := workercheck.Run(ctx, o)
	if err != nil {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		return unreachable(err, "start the worker, or correct its URL or command")
	}
	return c.report(results)
}

// chosen is the target that the flags or the configuration give.
func (c *workerChecker) chosen(args []string) (topology.Target, error) {
	given := 0
	for _, some := range []bool{c.target.URL != "", c.queue != "", len(args) > 0} {
		if some {
			given++
		}
	}
	switch {
	case given != 1:
		return topology.Target{}, usageErrorf("see surefoot worker check --help", "worker check needs one of --url, --queue and a program behind --")
	case c.queue != "":
		return c.configured()
	case len(args) > 0:
		return topology.Target{Exec: args, KeepAlive: true}, nil
	}
	target := topology.Target{HTTP: &c.target}
	spec := topology.Spec{Exchange: "x", Queues: []topology.Queue{{Name: "check", Target: &target}}}
	if err := spec.Validate(); err != nil {
		return target, usageErrorf("", "%w", err)
	}
	return target, nil
}

func (c *workerChecker) configured() (topology.Target, error) {
	config, err := c.session.config(need{})
	if err != nil {
		return topology.Target{}, err
	}
	q, known := config.Topology.Find(c.queue)
	if !known || q.Target == nil {
		return topology.Target{}, usageErrorf(near(c.queue, queueNames(config.Topology), ""), "queue %s has no target in the configuration", c.queue)
	}
	if c.timeout == 0 {
		c.timeout = q.HandlerTimeout
	}
	return *q.Target, nil
}

// connect makes what hands messages to the target.
func (c *workerChecker) connect(o *workercheck.Options, t topology.Target) error {
	options := program.Options{Command: t.Exec, Queue: c.queue, Environ: c.session.env.Environ}
	switch {
	case t.HTTP != nil:
		return c.connectEndpoint(o, *t.HTTP)
	case t.KeepAlive:
		kept, err := program.NewWorkers(options)
		if err != nil {
			return err
		}
		c.session.onClose(func() error { kept.Close(); return nil })
		o.Handle = kept.Handle
		return nil
	}
	handle, err := program.New(options)
	o.Handle = func(ctx context.Context, m message.Message) ([]message.Message, error) { return nil, handle(ctx, m) }
	return err
}

func (c *workerChecker) connectEndpoint(o *workercheck.Options, t topology.HTTPTarget) error {
	var err error
	if o.Handle, err = c.endpoint(t, nil); err != nil {
		return err
	}
	forge := func(name string, change func(*topology.HTTPTarget), now func() time.Time) error {
		forged := t
		change(&forged)
		handle, err := c.endpoint(forged, now)
		o.Forgeries = append(o.Forgeries, workercheck.Forgery{Name: name, Handle: handle})
		return err
	}
	if t.BearerFile != "" {
		if err := forge("without the token it is refused", func(t *topology.HTTPTarget) { t.BearerFile = "" }, nil); err != nil {
			return err
		}
	}
	if t.SigningKeyFile == "" {
		return nil
	}
	wrong, err := c.wrongKey()
	if err != nil {
		return err
	}
	anHourAgo := func() time.Time { return time.Now().Add(-time.Hour) }
	for _, f := range []struct {
		name   string
		change func(*topology.HTTPTarget)
		now    func() time.Time
	}{
		{"without a signature it is refused", func(t *topology.HTTPTarget) { t.SigningKeyFile = "" }, nil},
		{"with a wrong signature it is refused", func(t *topology.HTTPTarget) { t.SigningKeyFile = wrong }, nil},
		{"with a signature of an hour ago it is refused", func(*topology.HTTPTarget) {}, anHourAgo},
	} {
		if err := forge(f.name, f.change, f.now); err != nil {
			return err
		}
	}
	return nil
}

// wrongKey is a file with a key that nobody has.
func (c *workerChecker) wrongKey() (string, error) {
	dir, err := os.MkdirTemp("", "surefoot-check-")
	if err != nil {
		return "", err
	}
	c.session.onClose(func() error { return os.RemoveAll(dir) })
	path := filepath.Join(dir, "key")
	return path, os.WriteFile(path, []byte(message.NewID()), 0o600)
}

// endpoint has a policy whose circuit stays closed: refusals are what the checks look for.
func (c *workerChecker) endpoint(t topology.HTTPTarget, now func() time.Time) (consumer.RemoteHandler, error) {
	timeout := 30 * time.Second
	if c.timeout > 0 {
		timeout = c.timeout
	}
	guard, err := policy.New(policy.Options{Name: "check", Settings: resilience.Settings{
		Deadline: timeout, Timeout: timeout, Retry: resilience.Retry{Attempts: 1}, Breaker: resilience.Breaker{Failures: 1_000_000},
	}})
	if err != nil {
		return nil, err
	}
	e, err := endpoint.New(endpoint.Options{
		URL: t.URL, Queue: c.queue, Policy: guard, BearerFile: t.BearerFile, SigningKeyFile: t.SigningKeyFile, CAFile: t.CAFile,
		CertFile: t.CertFile, KeyFile: t.KeyFile, IgnoreAnswer: t.IgnoreAnswer, Now: now,
	})
	if err != nil {
		return nil, err
	}
	c.session.onClose(func() error { e.Close(); return nil })
	return e.Handle, nil
}

func (c *workerChecker) report(results []workercheck.Result) error {
	if err := render(c.session, listing[workercheck.Result]{
		Items: results,
		Name:  func(r workercheck.Result) string { return r.Check },
		Columns: []column[workercheck.Result]{
			{"CHECK", func(r workercheck.Result) string { return r.Check }},
			{"OUTCOME", func(r workercheck.Result) string { return r.Outcome }},
			{"DETAIL", func(r workercheck.Result) string { return r.Detail }},
		},
	}); err != nil {
		return err
	}
	failed := slices.DeleteFunc(slices.Clone(results), func(r workercheck.Result) bool { return r.Outcome != workercheck.Failed })
	if len(failed) > 0 {
		return differs("%d of %d checks failed", len(failed), len(results))
	}
	return nil
}
