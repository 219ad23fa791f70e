package uverbs

import "syscall"

// SyscallConn gives access to the channel's file, for event loops that wait for
// many files at once: it is readable when a CQ that was armed has completions.
// Whoever reads events from it (struct ib_uverbs_comp_event_desc) takes them
// away from those who wait here, and may discard them and poll all CQs. A
// request that siw flushes while it is being posted, to a QP that has failed
// already, or while its QP is moved to the error state, makes no event here, and
// disarms the CQ: arm it again when a QP has ended.
func (c *CompChannel) SyscallConn() (syscall.RawConn, error) { return c.ch.file.SyscallConn(), nil }
