// Package soak keeps all layers busy at once, for minutes or hours, and looks
// for what only shows then: leaks, stalls, damage.
//
//	test process: clients           the same program again: servers
//	  workload    ══ rounds of all layers ════════════ workload
//	  churn       ── dials, refusals, cancels, MRs ─── cm
//	     │                                                │
//	  sampler ◄── memory, files, goroutines ... ──────────┘
//	     └─► lines of JSON ─► verdict, report (./samples, ./report)
//
// A connection lives for some rounds, see package workload; then comes the next. make test has it run for seconds, make soak
// for an hour.
package soak
