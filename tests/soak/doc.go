// Package soak runs all layers at the same time, for minutes or hours, to find problems
// that appear only then: leaks, stalls, damage.
//
//	test process: clients           the same program again: servers
//	  workload    ══ rounds of all layers ════════════ workload
//	  churn       ── dials, refusals, cancels, MRs ─── cm
//	  scenarios   ══ internal/scenario, at random ════ scenarios
//	  removals      a second device comes and goes       ║
//	                third processes: victims ════════════╝
//	     │                                                │
//	  sampler ◄── memory, files, goroutines ... ──────────┘
//	     └─► verdict, and a table of what each layer did
//
// Victims are killed, stopped, or lack files or memory; on rxe and siw a second device of the driver is removed while
// it is used.
//
// TestSoak/soft puts a bad network between a device of the kernel and one in user space, and both
// processes dial.
//
// A connection lasts some rounds, see package workload; then the next is made. make test
// runs it for seconds, make soak for an hour.
package soak
