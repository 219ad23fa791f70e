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

// func storeDevice32(p *uint32, v uint32)
TEXT ·storeDevice32(SB), NOSPLIT, $0-12
	MOVD  p+0(FP), R0
	MOVWU v+8(FP), R1
	MOVW  R1, (R0)
	RET

// As __iowrite64_copy of the kernel's asm/io.h: nothing is between the stores, or processors combine less.
// func copyDevice(to, from *[64]byte)
TEXT ·copyDevice(SB), NOSPLIT, $0-16
	MOVD to+0(FP), R0
	MOVD from+8(FP), R1
	LDP  (R1), (R2, R3)
	LDP  16(R1), (R4, R5)
	LDP  32(R1), (R6, R7)
	LDP  48(R1), (R8, R9)
	STP  (R2, R3), (R0)
	STP  (R4, R5), 16(R0)
	STP  (R6, R7), 32(R0)
	STP  (R8, R9), 48(R0)
	RET

// func storeDoorbell64(record *atomic.Uint64, p *uint64, v uint64)
TEXT ·storeDoorbell64(SB), NOSPLIT, $0-24
	MOVD record+0(FP), R0
	MOVD p+8(FP), R1
	MOVD v+16(FP), R2
	DMB  $2 // OSHST
	MOVD R2, (R0)
	DMB  $2 // OSHST
	MOVD R2, (R1)
	RET
