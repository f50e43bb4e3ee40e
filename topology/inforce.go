package topology

import (
	"context"

	"github.com/surefoot-mq/surefoot/internal/rabbit"
)

// Read returns what is in the vhost, for [Diff], [Check] and [State.Number]. What the user may not see is left out, and unchecked says so.
func Read(ctx context.Context, m *rabbit.Management) (actual State, unchecked []string, err error) {
	return readState(ctx, m)
}

// Number is the value in force of a numeric setting of a queue, named as an argument such as x-delivery-limit: the lowest of the argument's
// and the policies'. by says which of them that is; set is false when there is none.
func (s State) Number(queue, argument string) (value int64, by string, set bool) {
	return s.effective(queue).number(argument)
}
