// Package soak keeps all layers busy at once, for minutes or hours, and looks
// for what only shows then: leaks, stalls, damage.
//
//	test process: clients           the same program again: servers
//	  cm + uverbs ══ messages, WRITE, READ, atomics ══ cm + uverbs
//	  conn        ══ messages, SGLs, adverts, Put ════ conn
//	  msg         ══ messages both ways ══════════════ msg
//	  rsock       ══ streams, half closes, deadlines ═ rsock
//	  http        ══ GET, POST over rsock ════════════ http
//	  churn       ── dials, refusals, cancels, MRs ─── cm
//	     │                                                │
//	  sampler ◄── memory, files, goroutines ... ──────────┘
//	     └─► lines of JSON ─► verdict, report (./samples, ./report)
//
// Each connection has a key, from which both sides know all that the other
// sends, so every byte is compared. A connection lives for some hundred
// operations; then comes the next. make test has it run for seconds, make soak
// for an hour.
package soak
