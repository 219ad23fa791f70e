// Package harness causes faults under load on a real kernel, and says what each
// layer made of them:
//
//	this process                          child, the same program
//	load: rounds, one after the other     serve
//	  session.Round ── a chunk ─────────► checked
//	  checked       ◄── a chunk ───────── (cm and rconn: fetched by READ)
//	        ▲
//	        │ the fault, after some rounds
//	        ▼
//	either   rounds go on: how long was the longest
//	or       Round has its documented error: after how long; Close returns;
//	         how long until a new connection works
//	always   all data was right, nothing is left behind (labtest.Inventory)
//
// Each fault is a test, with a subtest for each device and layer, and gives a
// row of the table in docs/reliability.md, which make faults writes. A plain go
// test runs a part of them; FAULTS=all runs all.
package harness
