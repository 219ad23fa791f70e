// Package hosts tests two machines, each with a kernel of its own, connected by
// wires, which the lab creates with LAB_PEER:
//
//	host 1: go test                       host 2: the same binary
//	tests ──────── net/rpc over c0 ─────► serve LAYER, use LAYER, run PROGRAM, crash
//	layer ═══ rxe0 on w0, siw0 on w1 ═══► layer
//
// make hosts runs all tests on two pairs of kernels, and those of adapters on a third; docs/reliability.md
// has the results. make s3 runs TestObjects. With -short, as in make test, there are only short tests, and
// of faults the loss of packets alone. The tests are skipped if there is only one machine.
package hosts
