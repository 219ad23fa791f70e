package provider

import (
	"syscall"

	"github.com/goverbs/verbs/abi"
)

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

func (c *command) write() syscall.Errno {
	if c.hold() {
		return 0
	}
	return c.file.Write(c.written, true)
}

func (c *command) ioctl() syscall.Errno {
	if c.hold() {
		return 0
	}
	return c.file.Ioctl(abi.RDMA_VERBS_IOCTL, c.msg, true)
}

func (c *command) hold() bool {
	if mute && heldBack == nil {
		heldBack = c
	}
	return mute
}
