package program

// AwaitDeath waits until it is known that the process that is idle has ended.
func (w *Workers) AwaitDeath() {
	p := w.pop()
	<-p.dead
	w.giveBack(p)
}
