//go:build !linux

package program

import "syscall"

// ownGroup makes the program the head of a group that can be killed as a whole.
func ownGroup() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setpgid: true} }
