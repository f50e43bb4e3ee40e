package program

import "syscall"

// ownGroup makes the program the head of a group that can be killed as a whole. The kernel kills the program itself when this
// process dies without a chance to: its message comes again, and must not find it at work. What it has started itself is out
// of reach then.
func ownGroup() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}
