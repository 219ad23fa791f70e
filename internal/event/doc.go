// Package event lets goroutines wait for the events of one source: a [Group].
//
//	goroutines ── Cond.Wait ─► Group ── the leader ─► Source.Sleep ─► host.EventFile
//	                             └───── the others wait until the leader wakes them
//
// No extra goroutine reads a file: one of the waiting goroutines, the leader, reads for all
// of them. When its wait is over, another one becomes the leader.
package event
