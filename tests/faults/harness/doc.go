// Package harness causes faults under load on a real kernel, and reports how each layer
// reacts:
//
//	this process                          child, the same program
//	load: rounds, one after the other     serve
//	  session.Round ── a chunk ─────────► checked
//	  checked       ◄── a chunk ───────── (cm and rconn: fetched by READ)
//	        ▲
//	        │ the fault, after some rounds
//	        ▼
//	either   rounds continue: the time of the longest
//	or       Round returns its documented error: the time until then; Close returns;
//	         the time until a new connection works
//	always   all data was right, nothing is leaked (labtest.Inventory)
//
// Each fault is a test, with a subtest for each device and layer; docs/reliability.md has the
// results in a table. A plain go test runs a part of them; FAULTS=all, as in make faults, runs all.
package harness
