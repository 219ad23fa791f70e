//go:build linux

package machine

import "errors"

// errBoot reports a kernel that went down before the program started.
var errBoot = errors.New("the kernel did not come up")

// errReuse reports a machine that is not fit for another program.
var errReuse = errors.New("the machine does not start another program")

// ErrPatched reports a kernel that ran into a breakpoint of its own: see Runner.Run.
var ErrPatched = errors.New("the kernel ran code that it had just patched")

// errWarned reports a kernel that logged a bug of its own.
var errWarned = errors.New("the kernel warned")

// ErrDown reports a kernel that went down, or was powered off, while a program ran.
var ErrDown = errors.New("the kernel went down before the program ended")

// errClock reports a guest whose clocks run at wrong speeds, which makes measurements meaningless.
var errClock = errors.New("the clocks of the guest disagree")
