package program

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/surefoot-mq/surefoot/consumer"
	"github.com/surefoot-mq/surefoot/message"
)

// stopGrace is how long a process that has nothing to do gets to end by itself once its standard input has.
const stopGrace = 2 * time.Second

// Workers hands messages to processes that stay: one message at a time to each, as a line of JSON on standard input, and one line of
// JSON comes back on standard output. There are as many processes as messages were handled at a time; they are started when they
// are needed. It is safe for concurrent use.
//
//	started --{"ready": true}--> idle --request--> busy --answer--> idle
//	   |                           |                 '--(dies, deadline, an answer that is none)--> killed; the message is retried
//	   |                           '--(dies, Close)--> gone; the next message starts another
//	   '--(dies, deadline)--> the message is held, uncounted: the program does not work at all
//
// docs/workers.md has the lines. Like one process per message it is at-least-once.
type Workers struct {
	o       Options
	running sync.WaitGroup

	mu   sync.Mutex
	idle []*process // the last was used last
}

// NewWorkers checks the options as [New] does. It starts nothing.
func NewWorkers(o Options) (*Workers, error) {
	o, err := o.checked()
	if err != nil {
		return nil, err
	}
	return &Workers{o: o}, nil
}

// Handle is a [consumer.RemoteHandler].
func (w *Workers) Handle(ctx context.Context, m message.Message) ([]message.Message, error) {
	p, err := w.take(ctx)
	if err != nil {
		return nil, err
	}
	answer, err := p.ask(ctx, requestOf(ctx, m, w.o.Queue))
	if err != nil {
		p.kill()
		<-p.dead
		return nil, p.failed(ctx, err)
	}
	defer w.giveBack(p)
	return answer.meaning(p.stderr.String())
}

// take returns a process that waits for a message, and starts one when there is none.
func (w *Workers) take(ctx context.Context) (*process, error) {
	for {
		p := w.pop()
		if p == nil {
			return w.start(ctx)
		}
		if p.waits() {
			return p, nil
		}
		p.kill()
	}
}

func (w *Workers) pop() *process {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.idle) == 0 {
		return nil
	}
	p := w.idle[len(w.idle)-1]
	w.idle = w.idle[:len(w.idle)-1]
	return p
}

func (w *Workers) giveBack(p *process) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.idle = append(w.idle, p)
}

// start waits until the process says that it is ready. One that cannot is no fault of the message.
func (w *Workers) start(ctx context.Context) (*process, error) {
	p, err := startProcess(w.o, &w.running)
	if err != nil {
		return nil, consumer.Unavailable(fmt.Errorf("start program %s: %w", w.o.Command[0], err))
	}
	if err := p.awaitReady(ctx); err != nil {
		p.kill()
		<-p.dead
		failed := p.failed(ctx, err)
		return nil, consumer.Unavailable(fmt.Errorf("program %s does not get ready: %w", w.o.Command[0], failed))
	}
	return p, nil
}

// Close ends the standard input of the processes that wait, lets them end, and kills what does not within 2 s. Call it when no
// message is handled any more; a later message starts processes again.
func (w *Workers) Close() {
	for p := w.pop(); p != nil; p = w.pop() {
		_ = p.in.Close()
		kill := time.AfterFunc(stopGrace, p.kill)
		w.running.Go(func() {
			<-p.dead
			kill.Stop()
		})
	}
	w.running.Wait()
}

var errNoAnswer = errors.New("ended without an answer")
