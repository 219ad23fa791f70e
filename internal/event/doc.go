// Package event is how all packages wait: a [File] is a file that the kernel's events are
// read from, and a [Group] lets many goroutines wait for what one such source brings.
//
//	goroutines ── Cond.Wait ─► Group ── the leader ─► Source.Sleep ─► File ─► kernel
//	                             └───── the others wait until the leader wakes them
//
// No goroutine is needed to read a file: one that waits reads for all, and hands over to
// another when it has what it waited for.
package event
