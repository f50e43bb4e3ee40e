package bench

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
)

const (
	// forLong keeps the server from ending what idles.
	forLong   = `SET idle_in_transaction_session_timeout = 0; SET statement_timeout = 0`
	holdSnap  = `BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM pg_class WHERE false`
	holdWrite = `BEGIN; SELECT pg_current_xact_id()::text`
	otherSQL  = `SELECT datname FROM pg_database WHERE datallowconn AND datname <> current_database() AND has_database_privilege(datname, 'CONNECT') ORDER BY datname`
)

// drainHeld lets every system drain its tables again and again. After the first round a transaction is opened and held to the end.
// The ratio of the last round to the first is that of rates relative to the bare publisher's, which takes out what the machine does.
func (s *stage) drainHeld(ctx context.Context, r *Report) (err error) {
	var turns []turn
	for _, sys := range s.systems() {
		t, err := s.newTables(ctx, sys, sys.schemaName())
		if err != nil {
			return err
		}
		turns = append(turns, turn{sys.name, func(ctx context.Context, round int) (Sample, error) {
			if err := t.add(ctx, s.o.Rows); err != nil {
				return Sample{}, err
			}
			return s.drain(ctx, t, round)
		}})
	}
	var held *pgx.Conn
	defer func() {
		if held != nil {
			_ = held.Close(context.WithoutCancel(ctx)) // which ends the transaction, whatever its state
		}
	}()
	err = s.take(ctx, r, turns, func(ctx context.Context, round int) error {
		if round > 1 {
			return stillHeld(ctx, held)
		}
		held, err = s.hold(ctx)
		return err
	})
	if err != nil {
		return err
	}
	for _, t := range turns[1:] {
		r.figure(t.name+", last round / first", "", s.lastByFirst(r, t.name), s.heldGoal(t.name))
	}
	return nil
}

// schemaName is the system's part in the name of its schema.
func (y system) schemaName() string {
	if y.name == "bare publisher" {
		return "bare"
	}
	return y.name
}

// add fills rows on top of what is left, which was held up.
func (t *tables) add(ctx context.Context, rows int) error { return t.top(ctx, t.there+rows) }

// heldGoal bounds what a held transaction may cost. The peers are controls: those that the kind of transaction hurts by their design
// must suffer, or nothing was tested.
func (s *stage) heldGoal(name string) *Goal {
	switch {
	case name == "relay":
		return atLeast(0.85)
	case name == "textbook" && s.o.Held != HeldElsewhere: // it wades through the dead rows that vacuum must keep in this database
		return atMost(0.75)
	case name == "watermill" && s.o.Held != HeldSnapshot: // it reads up to the oldest write transaction of the cluster
		return atMost(0.01)
	}
	return nil
}

// lastByFirst is one value.
func (s *stage) lastByFirst(r *Report, name string) []float64 {
	arm, bare := r.arm(name), r.arm("bare publisher")
	first, last := arm[1].Rate, arm[s.o.Rounds].Rate
	if first == 0 || bare[1].Rate == 0 || bare[s.o.Rounds].Rate == 0 {
		return nil
	}
	return []float64{last / bare[s.o.Rounds].Rate * bare[1].Rate / first}
}

// hold opens the transaction.
func (s *stage) hold(ctx context.Context) (*pgx.Conn, error) {
	config := s.pool.Config().ConnConfig.Copy()
	if s.o.Held == HeldElsewhere {
		return s.holdElsewhere(ctx, config)
	}
	conn, err := pgx.ConnectConfig(ctx, config)
	if err != nil {
		return nil, fmt.Errorf("connect to hold a transaction: %w", err)
	}
	return conn, s.begin(ctx, conn)
}

// holdElsewhere takes the first other database that lets it in.
func (s *stage) holdElsewhere(ctx context.Context, config *pgx.ConnConfig) (*pgx.Conn, error) {
	rows, err := s.pool.Query(ctx, otherSQL)
	if err != nil {
		return nil, err
	}
	names, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return nil, fmt.Errorf("list databases: %w", err)
	}
	failed := []error{errors.New("no other database of the cluster lets this user in; create one")}
	for _, name := range names {
		config.Database = name
		conn, err := pgx.ConnectConfig(ctx, config)
		if err == nil {
			s.say("held        a write transaction in database %s", name)
			return conn, s.begin(ctx, conn)
		}
		failed = append(failed, err)
	}
	return nil, errors.Join(failed...)
}

func (s *stage) begin(ctx context.Context, conn *pgx.Conn) error {
	hold := holdWrite
	if s.o.Held == HeldSnapshot {
		hold = holdSnap
	}
	for _, sql := range []string{forLong, hold} {
		if _, err := conn.Exec(ctx, sql, pgx.QueryExecModeSimpleProtocol); err != nil {
			return fmt.Errorf("hold a transaction: %w", err)
		}
	}
	return nil
}

// stillHeld makes sure that what was to be tested was there.
func stillHeld(ctx context.Context, conn *pgx.Conn) error {
	var alive bool
	if err := conn.QueryRow(ctx, `SELECT pg_current_snapshot() IS NOT NULL`).Scan(&alive); err != nil {
		return fmt.Errorf("the held transaction is gone: %w", err)
	}
	return nil
}
