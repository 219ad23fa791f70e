// Package mmap provides memory that is shared with the kernel and the few unsafe
// operations on it, so that the packages above need hardly any.
//
//	                kernel
//	  ┌───────────────┴────────────────┐
//	Region  a queue the driver made    Buffer  pages we made, pinned by an MR
//	  │                                  │
//	Ring    slots + two index words    []byte  what the program reads and writes
//
// A [Ring] follows one rule: the side that owns an index word stores it with release, and
// the other side loads it with acquire. An index word that the kernel wrote is masked
// when it is read, so a wrong value can never address memory outside the region. The
// layout itself is checked once, when the ring is made.
//
// A ring has no lock. The owner of a queue serializes access to it, including Close.
// After Close the memory is unmapped, and access to a remaining slice of it faults.
//
// # Barriers
//
// The barriers order this processor's accesses to memory that it shares with a device:
// main memory that the device reads and writes by itself (DMA), and registers of the
// device that are mapped into the process (MMIO), often with write combining. For the
// kernel's software drivers sync/atomic is enough: the other side is a processor as well.
//
// A driver for hardware posts requests like this:
//
//	fill slots of the queue
//	BarrierToDevice()         // slots before doorbell record
//	store the doorbell record // in main memory
//	FlushDevice()             // doorbell record before doorbell
//	StoreDevice(register, v)  // the doorbell
//	FlushDevice()             // it leaves the processor now
//
// and polls like this:
//
//	load the owner bit of the next completion
//	BarrierFromDevice()       // owner bit before the rest
//	load the completion
//	BarrierToDevice()
//	store the consumer index  // in main memory
//
// On arm64 they are the instructions of rdma-core's util/udma_barrier.h, on amd64 those of the
// kernel's dma_wmb, dma_rmb and wmb. Elsewhere they are atomic operations, which order main memory,
// but perhaps not device memory: see [OrdersDevice].
//
//	                   amd64                     arm64
//	BarrierToDevice    none, stores are ordered  DMB OSHST
//	BarrierFromDevice  none, loads are ordered   DMB OSHLD
//	FlushDevice        SFENCE                    DSB ST
//	StoreDevice        MOVQ                      STR
//	StoreDevice32      MOVL                      STR
package mmap
