package deadletter

import (
	"context"
	"errors"
	"fmt"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/surefoot-mq/surefoot/internal/dlqindex"
	"github.com/surefoot-mq/surefoot/internal/rabbit"
)

// actionScan is what the lock says of a scan: others may ask it to make room.
const actionScan = "dlq scan"

// scanBatch is how many letters go into the index at once.
const scanBatch = 500

// ErrMadeRoom says that a scan ended early, because somebody waited for the queue. Nothing is marked; scan again later.
var ErrMadeRoom = errors.New("deadletter: the scan made room for another operation")

// ScanRequest says what to scan.
type ScanRequest struct {
	// Queue is the work queue, or its dead-letter queue. Required.
	Queue string
	// Who scans, for the lock. Required.
	Who string
	// Stays keeps the scan going when somebody waits for the queue. Default: it makes room, see [ErrMadeRoom].
	Stays bool
	// Wait and Waiting are as in [Common].
	Wait    time.Duration
	Waiting func(Holder)
}

// ScanResult is what a scan saw.
type ScanResult struct {
	// Seen letters.
	Seen int
	// Vanished are the messages of the index that were not there any more.
	Vanished int
}

// Scan brings the index into line with a dead-letter queue by a look at all of it, which changes nothing in it: what is there and
// not indexed is added (the broker's own dead letters, those of other programs), and what is indexed and not there any more is
// marked as vanished. Only a scan that saw everything marks anything.
func (d *DeadLetters) Scan(ctx context.Context, r ScanRequest) (result ScanResult, err error) {
	n, err := namesOf(r.Queue)
	if err != nil {
		return result, err
	}
	if r.Who == "" {
		return result, fmt.Errorf("%w: Who is empty; the lock needs to know who scans", ErrBadRequest)
	}
	c := claim{who: r.Who, action: actionScan, wait: r.Wait, waiting: r.Waiting}
	err = d.connected(ctx, n, c, func(ctx context.Context, conn *rabbit.Conn, held *lock) error {
		s := &scanner{d: d, names: n, conn: conn, lock: held, stays: r.Stays}
		err := s.run(ctx)
		result = s.result
		return err
	})
	return result, err
}

// scanner is one scan under the queue's lock. One goroutine runs it.
type scanner struct {
	d      *DeadLetters
	names  names
	conn   *rabbit.Conn
	lock   *lock
	stays  bool
	result ScanResult

	scan  *dlqindex.Scan
	batch []dlqindex.Entry
	err   error
}

func (s *scanner) run(ctx context.Context) (err error) {
	if s.scan, err = s.d.index.Begin(ctx, s.d.vhost(), s.names.work); err != nil {
		return err
	}
	found, err := s.look(ctx)
	if err == nil {
		s.flush(ctx)
		err = s.err
	}
	if err == nil && s.result.Seen < found {
		err = fmt.Errorf("%w: %d of %d that were in %s", ErrTakenByOthers, found-s.result.Seen, found, s.names.dlq)
	}
	if err != nil {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), recordLimit)
		defer cancel()
		return errors.Join(err, s.scan.Break(ctx, err.Error()))
	}
	s.result.Vanished, err = s.scan.Complete(ctx)
	return err
}

// look sees all that is there now.
func (s *scanner) look(ctx context.Context) (found int, err error) {
	q, err := inspect(ctx, s.conn, s.names.dlq)
	if err != nil || q.Messages == 0 {
		return 0, missing(err, s.names.dlq, ErrNoDLQ)
	}
	err = s.d.lookAll(ctx, s.conn, s.names, func(d *amqp.Delivery) bool { return s.see(ctx, d) })
	return q.Messages, errors.Join(s.err, err)
}

func (s *scanner) see(ctx context.Context, d *amqp.Delivery) (more bool) {
	s.result.Seen++
	f := factsOf(d, s.names)
	s.batch = append(s.batch, entryOfFacts(d, &f))
	if len(s.batch) < scanBatch {
		return true
	}
	s.flush(ctx)
	if s.err == nil && !s.stays {
		s.err = s.room(ctx)
	}
	return s.err == nil
}

func (s *scanner) flush(ctx context.Context) {
	if s.err == nil && len(s.batch) > 0 {
		s.err = s.scan.Seen(ctx, s.batch)
	}
	s.batch = s.batch[:0]
}

func (s *scanner) room(ctx context.Context) error {
	wanted, err := s.lock.isWanted(ctx)
	if err == nil && wanted {
		err = ErrMadeRoom
	}
	return err
}
