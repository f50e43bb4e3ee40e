package deadletter

// SetRestWave makes the waves after a ramp as small as a test needs.
func (d *DeadLetters) SetRestWave(n int) { d.restWave = n }
