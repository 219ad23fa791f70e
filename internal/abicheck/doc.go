// Package abicheck compares package abi with what the running kernel says of its
// own structures, in BTF.
//
//	abi.Layout ────────────► Types ──┐
//	                                 ├─ Compare ──► Result ──► verbs abi, tests
//	/sys/kernel/btf/* ─────► Kernel ─┘                ▲
//	                                        uses: which feature needs it,
//	                                        and whether sizes are negotiated
//
// What a difference does depends on how a structure travels. Commands carry the
// length of what is sent, and of the room for the answer: either side may know
// of members that the other has not, at the end. Elements of queues that are
// mapped carry nothing: each side counts on their size.
package abicheck
