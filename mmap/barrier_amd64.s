#include "textflag.h"

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

// func storeDevice32(p *uint32, v uint32)
TEXT ·storeDevice32(SB), NOSPLIT, $0-12
	MOVQ p+0(FP), AX
	MOVL v+8(FP), CX
	MOVL CX, (AX)
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

// Loads of 8 bytes, as the request has been stored: wider ones would wait until that has left the processor.
// func copyDoorbell(record *atomic.Uint32, v uint32, to, from *[64]byte)
TEXT ·copyDoorbell(SB), NOSPLIT, $0-32
	MOVQ record+0(FP), AX
	MOVL v+8(FP), CX
	MOVQ to+16(FP), DX
	MOVQ from+24(FP), BX
	MOVL CX, (AX)
	SFENCE
	MOVQ (BX), R8
	MOVQ 8(BX), R9
	MOVQ 16(BX), R10
	MOVQ 24(BX), R11
	MOVQ 32(BX), R12
	MOVQ 40(BX), R13
	MOVQ 48(BX), SI
	MOVQ 56(BX), DI
	MOVQ R8, (DX)
	MOVQ R9, 8(DX)
	MOVQ R10, 16(DX)
	MOVQ R11, 24(DX)
	MOVQ R12, 32(DX)
	MOVQ R13, 40(DX)
	MOVQ SI, 48(DX)
	MOVQ DI, 56(DX)
	SFENCE
	RET

// func storeDoorbell(record *atomic.Uint32, v uint32, p *uint64, w uint64)
TEXT ·storeDoorbell(SB), NOSPLIT, $0-32
	MOVQ record+0(FP), AX
	MOVL v+8(FP), CX
	MOVQ p+16(FP), DX
	MOVQ w+24(FP), BX
	MOVL CX, (AX)
	SFENCE
	MOVQ BX, (DX)
	SFENCE
	RET

// func storeDoorbell64(record *atomic.Uint64, p *uint64, v uint64)
TEXT ·storeDoorbell64(SB), NOSPLIT, $0-24
	MOVQ record+0(FP), AX
	MOVQ p+8(FP), DX
	MOVQ v+16(FP), CX
	MOVQ CX, (AX)
	MOVQ CX, (DX)
	RET
