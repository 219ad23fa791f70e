// Package hosts has tests between two machines, each with a kernel of its own
// and wires between them, as the lab makes with LAB_PEER:
//
//	host 1: go test                       host 2: the same binary
//	tests ──────── net/rpc over c0 ─────► serve LAYER, use LAYER, run PROGRAM, crash
//	layer ═══ rxe0 on w0, siw0 on w1 ═══► layer
//
// make hosts runs all of them on two pairs of kernels, and writes what happened
// to docs/reliability.md. With -short, as in make test, there is but the work,
// a little of it. Where there is one machine only, the tests are skipped.
package hosts
