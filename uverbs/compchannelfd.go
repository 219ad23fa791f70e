package uverbs

// FD returns the channel's file, for event loops that wait for many files at once: it is
// readable, as poll(2) and epoll(7) see it, when a CQ that was armed has completions. It
// is valid until Close. [CompChannel.TryWait] takes an event. A program may also read
// events from the file (struct ib_uverbs_comp_event_desc), which takes them away from
// calls that wait here, discard them and poll all CQs.
//
// A request that siw flushes while it is being posted, to a QP that has failed already,
// or while its QP is moved to the error state, makes no event in the file, and disarms
// the CQ: arm it again when a QP has ended.
func (c *CompChannel) FD() int { return c.ch.file.FD() }
