// Package abicheck compares package abi with the running kernel's description of its
// structures, BTF.
//
//	abi.Layout ────────────► Types ──┐
//	                                 ├─ Compare ──► Result ──► verbs abi, tests
//	/sys/kernel/btf/* ─────► Kernel ─┘                ▲
//	                                        uses: which feature needs it,
//	                                        and whether sizes are negotiated
//
// The effect of a difference depends on how a structure is passed. Commands carry the
// lengths of the request and of the room for the answer: either side may have members
// at the end that the other lacks. Elements of mapped queues carry no length: each side
// relies on their size.
package abicheck
