package relay

// queue is a first-in, first-out queue of rows, in a ring. The zero value is empty.
type queue struct {
	ring  []*row
	head  int
	count int
}

func (q *queue) grow() {
	if q.count < len(q.ring) {
		return
	}
	ring := make([]*row, max(16, 2*len(q.ring)))
	for i := range q.count {
		ring[i] = q.ring[(q.head+i)%len(q.ring)]
	}
	q.ring, q.head = ring, 0
}

func (q *queue) push(r *row) {
	q.grow()
	q.ring[(q.head+q.count)%len(q.ring)] = r
	q.count++
}

func (q *queue) pushFront(r *row) {
	q.grow()
	q.head = (q.head + len(q.ring) - 1) % len(q.ring)
	q.ring[q.head] = r
	q.count++
}

func (q *queue) front() *row {
	if q.count == 0 {
		return nil
	}
	return q.ring[q.head]
}

func (q *queue) pop() *row {
	r := q.front()
	if r == nil {
		return nil
	}
	q.ring[q.head] = nil
	q.head = (q.head + 1) % len(q.ring)
	q.count--
	return r
}

// remove takes one row out, wherever it is.
func (q *queue) remove(r *row) {
	for _, other := range q.drain() {
		if other != r {
			q.push(other)
		}
	}
}

func (q *queue) drain() []*row {
	rows := make([]*row, 0, q.count)
	for q.count > 0 {
		rows = append(rows, q.pop())
	}
	return rows
}
