package drill

import (
	"cmp"
	"context"
	"crypto/rand"
	"crypto/tls"
	"encoding/hex"
	"errors"
	"fmt"
	"math/big"
	"net/url"
	"os/exec"
	"runtime"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/surefoot-mq/surefoot/internal/pg"
	"github.com/surefoot-mq/surefoot/internal/rabbit"
)

// Options of a runner.
type Options struct {
	// DatabaseURL of PostgreSQL; the user must be allowed to create schemas. Required.
	DatabaseURL string
	// AMQPURL of RabbitMQ; the user must be allowed to create vhosts. Required.
	AMQPURL string
	// ManagementURL of RabbitMQ. Default: port 15672 of AMQPURL's host.
	ManagementURL string
	// TLS trusted for amqps and https, and the file it was read from. Default: the system's authorities.
	TLS    *tls.Config
	CAFile string
	// Binary is the program surefoot, for the drills that need processes. Required.
	Binary string
	// Environ is the environment of those processes; what could configure them is left out.
	Environ []string
	// Stack is the local stack whose services may be stopped. Default: none, drills that stop a service are refused.
	Stack Stack
	// Arm leaves out all other arms. Default: all are played.
	Arm string
	// Set changes settings.
	Set []Assignment
	// Reports is the directory of the reports. Default: none are written.
	Reports string
	// Host, Version and Commit name this process to the services and in reports. Default: "unknown", "dev" and none.
	Host, Version, Commit string
	// Say is told what happens; from the goroutine of Run. Default: nobody is told.
	Say func(line string)
	// Done is given each report when its drill ends; an error ends the run. Default: nobody is.
	Done func(*Report) error
}

// Runner runs drills. Make one with [New].
type Runner struct {
	o    Options
	id   string // of this run
	seed int64

	pool       *pgxpool.Pool
	lock       *pgxpool.Conn
	management *rabbit.Management
	served     Environment
	arms       int // that were begun
}

// New checks the options. It does no I/O.
func New(o Options) (*Runner, error) {
	if o.DatabaseURL == "" || o.AMQPURL == "" || o.Binary == "" {
		return nil, errors.New("drill: DatabaseURL, AMQPURL and Binary are required")
	}
	o.Host, o.Version = cmp.Or(o.Host, "unknown"), cmp.Or(o.Version, "dev")
	if o.Say == nil {
		o.Say = func(string) {}
	}
	if o.Done == nil {
		o.Done = func(*Report) error { return nil }
	}
	var id [4]byte
	_, _ = rand.Read(id[:]) // never fails
	seed, err := rand.Int(rand.Reader, big.NewInt(1<<31))
	if err != nil {
		return nil, err
	}
	return &Runner{o: o, id: hex.EncodeToString(id[:]), seed: 1 + seed.Int64()}, nil
}

// Run runs the drills one after the other and returns their reports. An error means that a service is away or refuses before
// anything was drilled, that a report could not be written, or that ctx has ended; the reports so far come with it.
func (r *Runner) Run(ctx context.Context, drills []Drill) (reports []*Report, err error) {
	if err := r.open(ctx); err != nil {
		return nil, err
	}
	defer r.close(ctx)
	if err := r.sweep(ctx); err != nil {
		return nil, err
	}
	for _, d := range drills {
		report, err := r.one(ctx, d)
		if err != nil {
			return reports, err
		}
		reports = append(reports, report)
		if err := errors.Join(report.write(r.o.Reports), r.o.Done(report)); err != nil {
			return reports, err
		}
		if err := ctx.Err(); err != nil {
			return reports, err
		}
	}
	return reports, nil
}

const versionSQL = `SELECT current_setting('server_version')`

// vhostTime covers the end of a vhost with all its queues on a loaded machine.
const vhostTime = 20 * time.Second

// open reaches both services and takes the lock of this run.
func (r *Runner) open(ctx context.Context) (err error) {
	defer func() {
		if err != nil {
			r.close(ctx)
		}
	}()
	if r.pool, err = pg.Open(ctx, pg.Options{URL: r.o.DatabaseURL, Name: "surefoot drill", MaxConns: 4}); err != nil {
		return err
	}
	if r.lock, err = r.pool.Acquire(ctx); err != nil {
		return fmt.Errorf("reach PostgreSQL: %w", err)
	}
	r.served = Environment{
		Version: r.o.Version, Commit: r.o.Commit, Host: r.o.Host, System: runtime.GOOS + "/" + runtime.GOARCH, CPUs: runtime.NumCPU(),
	}
	if err := r.lock.QueryRow(ctx, versionSQL).Scan(&r.served.Postgres); err != nil {
		return fmt.Errorf("reach PostgreSQL: %w", err)
	}
	if _, err := r.lock.Exec(ctx, lockSQL, r.id); err != nil {
		return fmt.Errorf("lock run: %w", err)
	}
	conn, err := rabbit.Dial(ctx, r.rabbit(r.o.AMQPURL))
	if err != nil {
		return err
	}
	r.served.RabbitMQ = conn.ServerVersion().String()
	if err := conn.Close(); err != nil {
		return err
	}
	r.management, err = r.managementOf(r.o.AMQPURL)
	return err
}

func (r *Runner) managementOf(amqpURL string) (*rabbit.Management, error) {
	return rabbit.NewManagement(rabbit.ManagementOptions{AMQPURL: amqpURL, URL: r.o.ManagementURL, TLS: r.o.TLS, Timeout: vhostTime})
}

// vhost is the URL of a vhost, and its management.
func (r *Runner) vhost(name string) (amqpURL string, m *rabbit.Management, err error) {
	u, err := url.Parse(r.o.AMQPURL)
	if err != nil {
		return "", nil, errors.New("the AMQP URL cannot be parsed (not shown, for it may hold a password)")
	}
	u.Path, u.RawPath = "/"+name, ""
	m, err = r.managementOf(u.String())
	return u.String(), m, err
}

func (r *Runner) rabbit(url string) rabbit.Options {
	return rabbit.Options{URL: url, TLS: r.o.TLS, Role: "drill", Host: r.o.Host, Version: r.o.Version}
}

func (r *Runner) close(ctx context.Context) {
	if r.lock != nil {
		_ = r.lock.Conn().Close(context.WithoutCancel(ctx)) // which unlocks, whatever state it is in
		r.lock.Release()
	}
	if r.pool != nil {
		r.pool.Close()
	}
}

// one runs a drill. The error is that of settings that it does not take.
func (r *Runner) one(ctx context.Context, d Drill) (*Report, error) {
	set, err := d.settings(r.o.Set, r.seed)
	if err != nil {
		return nil, err
	}
	report := r.blank(d, set)
	if why := r.refuses(d); why != "" {
		report.Verdict, report.Reason = Refused, why
		return report, nil
	}
	checks := d.Checks(set)
	for _, arm := range d.Arms {
		if r.o.Arm != "" && arm.Name != r.o.Arm || ctx.Err() != nil {
			continue
		}
		r.o.Say(fmt.Sprintf("%-24s %-9s %s", d.Name, arm.Name, arm.Does))
		played, figures := r.play(ctx, d, arm, set)
		report.Arms = append(report.Arms, played)
		report.Checks = append(report.Checks, judge(checks, arm.Name, figures)...)
	}
	report.Seconds = time.Since(report.Began).Seconds()
	report.judge(ctx)
	return report, nil
}

// refuses says why a drill cannot be run here; "" when it can.
func (r *Runner) refuses(d Drill) string {
	if d.Tool != "" {
		name := program(d.Tool, r.o.Environ)
		if _, err := exec.LookPath(name); err != nil {
			return name + " is missing, and the drill needs it: scripts/alerts install"
		}
	}
	if d.Alone {
		return r.o.Stack.refuses(r.o)
	}
	return ""
}

func (r *Runner) blank(d Drill, set Settings) *Report {
	report := &Report{
		Drill: d.Name, Section: d.Section, Proves: d.Proves, Run: r.id, Seed: set.Seed, Began: time.Now().UTC(), Environment: r.served,
		Arms: []ArmReport{}, Checks: []CheckResult{}, Settings: []SettingValue{}, Files: []string{},
	}
	for _, s := range d.Settings {
		report.Settings = append(report.Settings, SettingValue{s.Name, valueText(set.value(s.Name)), valueText(s.Default), s.Means})
	}
	return report
}

func (r *Report) judge(ctx context.Context) {
	r.Verdict = Passed
	for _, c := range r.Checks {
		if !c.Holds {
			r.Verdict = Failed
		}
	}
	for _, a := range r.Arms {
		if a.Error != "" {
			r.Verdict, r.Reason = Failed, a.Arm+": "+a.Error
		}
	}
	if len(r.Arms) == 0 {
		r.Verdict, r.Reason = Failed, "no arm was played"
	}
	if ctx.Err() != nil {
		r.Verdict, r.Reason = Interrupted, "interrupted before its end"
	}
}

// armLimit bounds an arm that hangs; none takes nearly as long.
const armLimit = 2 * time.Minute

var errHangs = errors.New("the arm did not end in time")

// play plays one arm on a stage of its own.
func (r *Runner) play(ctx context.Context, d Drill, arm Arm, set Settings) (ArmReport, []Figure) {
	r.arms++
	s := newStage(r, d, arm, set)
	began := time.Now()
	limited, cancel := context.WithTimeoutCause(ctx, armLimit, errHangs)
	defer cancel()
	err := arm.play(limited, s)
	if err != nil && errors.Is(context.Cause(limited), errHangs) {
		err = errors.Join(errHangs, err)
	}
	err = errors.Join(err, s.close(ctx))
	report := ArmReport{Arm: arm.Name, Does: arm.Does, Seconds: time.Since(began).Seconds(), Figures: []FigureValue{}, Tables: s.tables}
	for _, f := range s.figures {
		report.Figures = append(report.Figures, FigureValue{f.Name, f.Value, f.Text()})
	}
	if err != nil {
		report.Error = err.Error()
	}
	return report, s.figures
}
