#include "textflag.h"

// Stores are in order already. That this is a call keeps the compiler from moving them.
// func barrierToDevice()
TEXT ·barrierToDevice(SB), NOSPLIT, $0-0
	RET

// func barrierFromDevice()
TEXT ·barrierFromDevice(SB), NOSPLIT, $0-0
	LFENCE
	RET

// func flushDevice()
TEXT ·flushDevice(SB), NOSPLIT, $0-0
	SFENCE
	RET

// func storeDevice(p *uint64, v uint64)
TEXT ·storeDevice(SB), NOSPLIT, $0-16
	MOVQ p+0(FP), AX
	MOVQ v+8(FP), CX
	MOVQ CX, (AX)
	RET

// func copyDevice(to, from *[64]byte)
TEXT ·copyDevice(SB), NOSPLIT, $0-16
	MOVQ  to+0(FP), AX
	MOVQ  from+8(FP), CX
	MOVOU (CX), X0
	MOVOU 16(CX), X1
	MOVOU 32(CX), X2
	MOVOU 48(CX), X3
	MOVOU X0, (AX)
	MOVOU X1, 16(AX)
	MOVOU X2, 32(AX)
	MOVOU X3, 48(AX)
	RET
