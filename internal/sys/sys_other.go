//go:build !linux || nordma

package sys

import (
	"runtime"
	"syscall"
)

func Uninterrupted(f func() error) error { return f() }
func memlockLimit() uint64               { return Unlimited }
func LocksFreely() bool                  { return false }
func KernelRelease() string              { return "" }
func ErrnoName(syscall.Errno) string     { return "" }
func Yield()                             {}
func Nap()                               { runtime.Gosched() }
