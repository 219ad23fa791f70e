package abi

import _ "embed"

//go:embed zabi_layout.txt
var layoutText string

// Layout returns the layout in C of every structure and the value of every constant, one
// per line, as the generator wrote it:
//
//	sizeof struct siw_cqe = 32
//	offsetof struct siw_cqe id = 0 size 8
//	const SIW_WQE_VALID = 1
func Layout() string { return layoutText }
