package abi

import _ "embed"

//go:embed zabi_layout.txt
var layoutText string

// Layout is what C makes of every structure and constant, a line each, as the
// generator wrote it down:
//
//	sizeof struct siw_cqe = 32
//	offsetof struct siw_cqe id = 0 size 8
//	const SIW_WQE_VALID = 1
func Layout() string { return layoutText }
