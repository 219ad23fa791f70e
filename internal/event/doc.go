// Package event waits for events of the kernel: a [File] is a file from which they are read,
// and a [Group] is a set of goroutines that wait for the events of one source.
//
//	goroutines ── Cond.Wait ─► Group ── the leader ─► Source.Sleep ─► File ─► kernel
//	                             └───── the others wait until the leader wakes them
//
// No extra goroutine reads a file: one of the waiting goroutines, the leader, reads for all
// of them. When its wait is over, another one becomes the leader.
package event
