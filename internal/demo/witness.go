package demo

import (
	"context"
	"fmt"
	"maps"
	"sync"

	"github.com/surefoot-mq/surefoot/internal/rabbit"
)

// mostWitnessed is the most that a channel can hold unacknowledged.
const mostWitnessed = 65535

// witness counts, by message id, what was published. It acknowledges nothing: at its end everything lies in its
// queue again, to be looked at.
type witness struct {
	sub  *rabbit.Subscription
	done chan struct{}

	mu     sync.Mutex
	copies map[string]int
	total  int
}

func watch(ctx context.Context, conn *rabbit.Conn) (*witness, error) {
	sub, err := conn.Consume(ctx, rabbit.ConsumeOptions{Queue: Witness, Prefetch: mostWitnessed})
	if err != nil {
		return nil, fmt.Errorf("watch what is published: %w", err)
	}
	w := &witness{sub: sub, done: make(chan struct{}), copies: map[string]int{}}
	go w.count()
	return w, nil
}

func (w *witness) count() {
	defer close(w.done)
	for d := range w.sub.Deliveries() {
		w.mu.Lock()
		w.copies[d.MessageId]++
		w.total++
		w.mu.Unlock()
	}
}

// seen returns the copies by message id, and their sum.
func (w *witness) seen() (copies map[string]int, total int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return maps.Clone(w.copies), w.total
}

// close ends the counting.
func (w *witness) close(ctx context.Context) {
	_ = w.sub.Close(ctx) // bounded by its own limit; a lost connection returns the messages as well
	<-w.done
}
