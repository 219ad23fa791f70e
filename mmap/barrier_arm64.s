#include "textflag.h"

// func barrierToDevice()
TEXT ·barrierToDevice(SB), NOSPLIT, $0-0
	DMB $2 // OSHST
	RET

// func barrierFromDevice()
TEXT ·barrierFromDevice(SB), NOSPLIT, $0-0
	DMB $1 // OSHLD
	RET

// func flushDevice()
TEXT ·flushDevice(SB), NOSPLIT, $0-0
	DSB $14 // ST
	RET

// func storeDevice(p *uint64, v uint64)
TEXT ·storeDevice(SB), NOSPLIT, $0-16
	MOVD p+0(FP), R0
	MOVD v+8(FP), R1
	MOVD R1, (R0)
	RET
