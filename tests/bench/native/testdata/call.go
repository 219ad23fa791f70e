package provider

import "golang.org/x/sys/unix"

// Mute holds commands back from the kernel until Unmute.
func Mute() { mute = true }

// Unmute ends Mute and runs the first command held back: the doorbell of the
// QP to which requests were posted. It covers all posts since.
func Unmute() error {
	c := heldBack
	mute, heldBack = false, nil
	if c == nil {
		return nil
	}
	return c.run()
}

var (
	mute     bool
	heldBack *command
)

func (c *command) call(trap, a2, a3 uintptr) (errno unix.Errno) {
	if mute {
		if heldBack == nil {
			heldBack = c
		}
		return 0
	}
	_, _, errno = unix.Syscall(trap, c.fd, a2, a3)
	return errno
}
