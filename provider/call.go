package provider

import (
	"syscall"

	"github.com/goverbs/verbs/abi"
)

// write and ioctl make the calls that run the command. They are in a file of their own, which
// tests/bench/native replaces.
func (c *command) write() syscall.Errno { return c.file.Write(c.written, c.blocking) }

func (c *command) ioctl() syscall.Errno { return c.file.Ioctl(abi.RDMA_VERBS_IOCTL, c.msg, c.blocking) }
