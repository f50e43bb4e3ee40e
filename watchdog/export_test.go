package watchdog

import "context"

// ClaimSQL is the statement that claims fresh rows for the first rule.
func (w *Watchdog) ClaimSQL(ctx context.Context) (string, error) {
	r, err := w.compile(ctx, w.options.Rules[0])
	if err != nil {
		return "", err
	}
	return r.fresh, nil
}
