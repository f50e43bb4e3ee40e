package fault

import (
	"errors"
	"time"
)

// setClock sets the wall clock of this process, as an administrator sets the machine's: what [time.Now] says changes, durations
// between two such times do not. A program cannot do that to itself. Package crash builds programs that can, with a package
// time of their own and with another version of this file.
func setClock(time.Duration) error {
	return errors.New("this program was not built with a clock that can be set")
}
