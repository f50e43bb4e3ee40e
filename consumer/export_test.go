package consumer

// SetStep puts a test's own function in the place of the fault points.
func SetStep(o *Options, step func(name string) error) { o.step = step }
