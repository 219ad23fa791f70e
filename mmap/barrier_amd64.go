package mmap

import "sync/atomic"

// The processor keeps stores in order, and loads. The compiler moves no store before an earlier
// one, and nothing before an earlier atomic load. So do the kernel's dma_wmb and dma_rmb on this
// processor (arch/x86/include/asm/barrier.h); mlx5e reads completions that way (mlx5e_poll_rx_cq).
func barrierToDevice()   {}
func barrierFromDevice() {}

//go:noescape
func copyDoorbell(record *atomic.Uint32, v uint32, to, from *[64]byte)

//go:noescape
func storeDoorbell(record *atomic.Uint32, v uint32, p *uint64, w uint64)
