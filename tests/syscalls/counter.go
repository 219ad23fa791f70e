// Package syscalls counts the system calls of a thread, with an eBPF program on a
// tracepoint of the kernel, so that tests can measure what the fast path claims.
//
//	any system call ─► raw tracepoint sys_enter ─► this thread? counts[number]++
package syscalls

import (
	"encoding/binary"
	"fmt"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"
)

// Counter counts the system calls of one thread at a time. The caller must
// close it.
type Counter struct {
	objects *ebpf.Collection
	counts  *ebpf.Map    // number of the call -> times
	armed   *ebpf.Memory // the thread that is counted: switching requires no system call
	link    link.Link
}

// NewCounter attaches the program; it needs CAP_BPF and CAP_PERFMON.
func NewCounter() (*Counter, error) {
	objects, err := ebpf.NewCollection(&ebpf.CollectionSpec{
		Maps: map[string]*ebpf.MapSpec{
			"counts": {Type: ebpf.Hash, KeySize: 4, ValueSize: 8, MaxEntries: 1024},
			"armed":  {Type: ebpf.Array, KeySize: 4, ValueSize: 4, MaxEntries: 1, Flags: unix.BPF_F_MMAPABLE},
		},
		Programs: map[string]*ebpf.ProgramSpec{
			"count": {Type: ebpf.RawTracepoint, License: "GPL", Instructions: program()},
		},
	})
	if err != nil {
		return nil, fmt.Errorf("count system calls: %w", err)
	}
	c := &Counter{objects: objects, counts: objects.Maps["counts"]}
	if c.armed, err = objects.Maps["armed"].Memory(); err == nil {
		c.link, err = link.AttachRawTracepoint(link.RawTracepointOptions{Name: "sys_enter", Program: objects.Programs["count"]})
	}
	if err != nil {
		objects.Close()
		return nil, fmt.Errorf("count system calls: %w", err)
	}
	return c, nil
}

// program returns this program, which runs for the system call args[1]:
//
//	if thread != *armed { return }
//	if n := counts[number]; n != nil { atomic *n += 1 } else { counts[number] = 1 }
func program() asm.Instructions {
	const keyOff, oneOff = -4, -16
	return asm.Instructions{
		asm.Mov.Reg(asm.R6, asm.R1), // context: struct pt_regs *regs; long number
		asm.FnGetCurrentPidTgid.Call(),
		asm.Mov.Reg(asm.R7, asm.R0),
		asm.LSh.Imm(asm.R7, 32), // low half: thread
		asm.RSh.Imm(asm.R7, 32),
		asm.LoadMapValue(asm.R1, 0, 0).WithReference("armed"),
		asm.LoadMem(asm.R1, asm.R1, 0, asm.Word),
		asm.JNE.Reg(asm.R1, asm.R7, "out"),

		asm.LoadMem(asm.R8, asm.R6, 8, asm.DWord),
		asm.StoreMem(asm.R10, keyOff, asm.R8, asm.Word),
		asm.LoadMapPtr(asm.R1, 0).WithReference("counts"),
		asm.Mov.Reg(asm.R2, asm.R10),
		asm.Add.Imm(asm.R2, keyOff),
		asm.FnMapLookupElem.Call(),
		asm.JEq.Imm(asm.R0, 0, "new"),
		asm.Mov.Imm(asm.R1, 1),
		asm.StoreXAdd(asm.R0, asm.R1, asm.DWord),
		asm.Ja.Label("out"),

		asm.Mov.Imm(asm.R1, 1).WithSymbol("new"),
		asm.StoreMem(asm.R10, oneOff, asm.R1, asm.DWord),
		asm.LoadMapPtr(asm.R1, 0).WithReference("counts"),
		asm.Mov.Reg(asm.R2, asm.R10),
		asm.Add.Imm(asm.R2, keyOff),
		asm.Mov.Reg(asm.R3, asm.R10),
		asm.Add.Imm(asm.R3, oneOff),
		asm.Mov.Imm(asm.R4, 0), // BPF_ANY
		asm.FnMapUpdateElem.Call(),

		asm.Mov.Imm(asm.R0, 0).WithSymbol("out"),
		asm.Return(),
	}
}

// Close stops counting.
func (c *Counter) Close() error {
	defer c.objects.Close()
	return c.link.Close()
}

// Calls holds how often each system call, by number, was made.
type Calls map[uint32]uint64

// During returns the calls of the calling thread while f runs. The goroutine
// must be locked to its thread.
func (c *Counter) During(f func()) (Calls, error) {
	var nr uint32
	var times uint64
	for all := c.counts.Iterate(); all.Next(&nr, &times); {
		if err := c.counts.Delete(nr); err != nil {
			return nil, err
		}
	}
	on := binary.NativeEndian.AppendUint32(nil, uint32(unix.Gettid()))
	off := make([]byte, len(on))
	if _, err := c.armed.WriteAt(on, 0); err != nil {
		return nil, err
	}
	f()
	if _, err := c.armed.WriteAt(off, 0); err != nil {
		return nil, err
	}
	calls := Calls{}
	all := c.counts.Iterate()
	for all.Next(&nr, &times) {
		calls[nr] = times
	}
	return calls, all.Err()
}
