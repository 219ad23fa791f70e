//go:build linux

package connectx

import (
	"bytes"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/goverbs/verbs/lab/connectx/internal/ifc"
	"github.com/goverbs/verbs/lab/internal/pcidev"
	"github.com/goverbs/verbs/lab/vfiouser"
)

// entry is an entry of the command queue, as a driver fills it in.
type entry struct {
	m             *machine
	queue         buffer
	slot          int
	in, out       buffer // chains of blocks
	inLen, outLen int
	token         byte
}

// newEntry gives the adapter a command queue, and prepares an entry for a command whose input is
// in.
func (m *machine) newEntry(slot int, in []byte, outLen int) *entry {
	e := &entry{m: m, queue: m.alloc(pageBytes), slot: slot, inLen: len(in), outLen: outLen, token: 0x5a}
	var b [4]byte
	be.PutUint32(b[:], uint32(e.queue.addr[0]>>32))
	m.dev.Write(0, segCommandsHigh, b[:])
	be.PutUint32(b[:], uint32(e.queue.addr[0]))
	m.dev.Write(0, segCommandsLow, b[:])
	d := e.desc()
	d[0] = 7
	be.PutUint32(d[4:], uint32(len(in)))
	copy(d[16:32], in)
	be.PutUint32(d[56:], uint32(outLen))
	d[60], d[63] = e.token, 1
	e.in = e.chain(d[8:16], in[min(16, len(in)):], len(in)-16)
	e.out = e.chain(d[48:56], nil, outLen-16)
	return e
}

func (e *entry) desc() []byte { return e.queue.at(e.slot*commandSize, commandSize) }

// chain makes the blocks for size bytes, and stores the address of the first in ptr.
func (e *entry) chain(ptr, data []byte, size int) buffer {
	n := max((size+blockData-1)/blockData, 0)
	if n == 0 {
		return buffer{}
	}
	buf := e.m.alloc(n * pageBytes)
	for i := range n {
		be.PutUint64(ptr, buf.addr[i])
		b := buf.at(i*pageBytes, blockSize)
		data = data[copy(b[:blockData], data):]
		be.PutUint32(b[568:], uint32(i))
		b[573] = e.token
		ptr = b[560:568]
	}
	return buf
}

// ring has the command executed, and returns the delivery status.
func (e *entry) ring() byte {
	e.m.t.Helper()
	e.store()
	return e.wait()
}

// store rings the doorbell.
func (e *entry) store() {
	var b [4]byte
	be.PutUint32(b[:], 1<<e.slot)
	e.m.dev.Write(0, segDoorbell, b[:])
}

func (e *entry) wait() byte {
	e.m.t.Helper()
	own := &e.desc()[63]
	for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(100 * time.Microsecond) {
		idle := e.m.dev.commands.Idle() // which orders the memory as the interrupt does
		if idle && *own&1 == 0 {
			return *own >> 1
		}
		if time.Now().After(deadline) {
			e.m.t.Fatal("the command is not executed")
		}
	}
}

// output returns the whole output.
func (e *entry) output() []byte {
	out := bytes.Clone(e.desc()[32:48])
	for i := 0; len(out) < e.outLen; i++ {
		out = append(out, e.out.at(i*pageBytes, blockData)...)
	}
	return out[:e.outLen]
}

func queryCap(typ uint16) []byte {
	in := make([]byte, 16)
	be.PutUint16(in, ifc.OpQueryHcaCap)
	be.PutUint16(in[6:], typ<<1|1)
	return in
}

func TestCommandQueue(t *testing.T) {
	m := newMachine(t, newHub(), 1)
	e := m.newEntry(31, queryCap(ifc.CapGeneral), 4112)
	var high, low [4]byte
	m.dev.Read(0, segCommandsHigh, high[:])
	m.dev.Read(0, segCommandsLow, low[:])
	// 32 entries of 64 bytes (cmdq_addr_l_sz).
	if got, want := uint64(be.Uint32(high[:]))<<32|uint64(be.Uint32(low[:])), e.queue.addr[0]|5<<4|6; got != want {
		t.Errorf("the queue is at %#x, want %#x", got, want)
	}
	if d := e.ring(); d != 0 {
		t.Fatalf("delivery %#x", d)
	}
	out := e.output()
	if out[0] != 0 || !bytes.Equal(out[16:], m.dev.caps.now[ifc.CapGeneral]) {
		t.Errorf("QUERY_HCA_CAP over %d blocks: %x", len(e.out.addr), out[:64])
	}
	// Its input is longer than an entry, too.
	in := make([]byte, ifc.Layouts[ifc.OpSetHcaCap].In)
	be.PutUint16(in, ifc.OpSetHcaCap)
	copy(in[16:], m.dev.caps.now[ifc.CapGeneral])
	ifc.CmdHcaCapLogMaxQp.Set(in[16:], 10)
	e = m.newEntry(0, in, 16)
	if d := e.ring(); d != 0 || e.output()[0] != 0 {
		t.Fatalf("SET_HCA_CAP: delivery %#x, status %#x", d, e.output()[0])
	}
	if n := m.dev.caps.int(ifc.CapGeneral, ifc.CmdHcaCapLogMaxQp); n != 10 {
		t.Errorf("log_max_qp is %d, want 10", n)
	}
}

// TestCommandDelivery sends what is not executed.
func TestCommandDelivery(t *testing.T) {
	m := newMachine(t, newHub(), 1)
	for _, c := range []struct {
		name   string
		change func(e *entry)
		want   byte
	}{
		{"type", func(e *entry) { e.desc()[0] = 6 }, deliveryDescriptor},
		{"reserved", func(e *entry) { e.desc()[2] = 1 }, deliveryReserved},
		{"short input", func(e *entry) { be.PutUint32(e.desc()[4:], 15) }, deliveryInLength},
		{"long input", func(e *entry) { be.PutUint32(e.desc()[4:], 1<<31) }, deliveryInLength},
		{"short output", func(e *entry) { be.PutUint32(e.desc()[56:], 7) }, deliveryOutLength},
		{"long output", func(e *entry) { be.PutUint32(e.desc()[56:], maxCommand+1) }, deliveryOutLength},
		{"input pointer", func(e *entry) { e.desc()[15] = 4 }, deliveryInAlign},
		{"output pointer", func(e *entry) { e.desc()[55] = 4 }, deliveryOutAlign},
		{"token of a block", func(e *entry) { e.out.at(573, 1)[0]++ }, deliveryToken},
		{"number of a block", func(e *entry) { e.out.at(pageBytes+571, 1)[0]++ }, deliveryBlockNumber},
		{"address of a block", func(e *entry) { be.PutUint64(e.out.at(560, 8), 1<<50) }, deliveryDescriptor},
	} {
		e := m.newEntry(3, queryCap(0), 4112)
		c.change(e)
		if got := e.ring(); got != c.want {
			t.Errorf("%s: delivery %#x, want %#x", c.name, got, c.want)
		}
	}
	// An entry that the driver owns is left alone.
	e := m.newEntry(3, queryCap(0), 16)
	e.desc()[63] = 0
	e.ring()
	if !bytes.Equal(e.desc()[32:48], make([]byte, 16)) {
		t.Error("an entry of the driver's has been executed")
	}
}

// TestReservedBits sets each reserved bit of each command, which refuses it before it does
// anything.
func TestReservedBits(t *testing.T) {
	m := newMachine(t, newHub(), 1)
	for op, l := range ifc.Layouts {
		if handlers[op] == nil {
			continue
		}
		for _, f := range l.Reserved {
			for _, bit := range []int{f.Off(), f.Off() + f.Bits() - 1} {
				in := make([]byte, l.In)
				be.PutUint16(in, op)
				in[bit/8] |= 0x80 >> (bit % 8)
				if out := m.dev.execute(in, l.Out); out[0] != byte(ifc.StatusBadParamErr) {
					t.Errorf("%s with bit %#x: status %#x", ifc.Layouts[op].Name, bit, out[0])
				}
			}
		}
	}
}

func TestCommandLengths(t *testing.T) {
	m := newMachine(t, newHub(), 1)
	for op, l := range ifc.Layouts {
		if s, ok := shorter[op]; ok {
			l = s
		}
		if handlers[op] == nil || l.In <= 16 {
			continue
		}
		in := make([]byte, l.In-1)
		be.PutUint16(in, op)
		if out := m.dev.execute(in, max(l.Out, 16)); out[0] != byte(ifc.StatusBadInpLenErr) {
			t.Errorf("%s of %d bytes: status %#x", ifc.Layouts[op].Name, len(in), out[0])
		}
	}
	for op := range uint16(0x1000) {
		if handlers[op] != nil {
			continue
		}
		in := make([]byte, 64)
		be.PutUint16(in, op)
		if out := m.dev.execute(in, 16); out[0] != byte(ifc.StatusBadOpErr) {
			t.Errorf("command %#x: status %#x", op, out[0])
		}
	}
}

// TestReset removes everything while commands are being executed.
func TestReset(t *testing.T) {
	m := newMachine(t, newHub(), 1)
	m.newNetdev()
	for i := range 32 {
		var b [4]byte
		be.PutUint32(b[:], 0xffffffff)
		m.newEntry(i, queryCap(0), 4112)
		m.dev.Write(0, segDoorbell, b[:])
		m.dev.Reset()
	}
	for name, n := range map[string]int{
		"EQs": len(m.dev.eqs.All()), "PDs": len(m.dev.t.pds.All()), "UARs": len(m.dev.res.uars.All()), "TISs": len(m.dev.eth.tises.All()),
		"SQs": len(m.dev.eth.sqs.All()), "CQs": len(m.dev.t.cqs.All()), "mkeys": len(m.dev.t.mkeys.All()),
	} {
		if n > 0 {
			t.Errorf("%d %s after a reset", n, name)
		}
	}
	m.begin(1)
	m.newNetdev() // works again
}

// FuzzCommands executes commands one after the other, each with an opcode that there is and numbers
// that are small, so that objects are found.
func FuzzCommands(f *testing.F) {
	var ops []uint16
	for op := range uint16(0xfff) {
		if handlers[op] != nil {
			ops = append(ops, op)
		}
	}
	for i := range ops {
		f.Add(fmt.Appendf(nil, "%c%c\x00\x00\x01\x10\x00\x01", i, 16))
	}
	// Pages are given in a list.
	f.Add(slices.Concat([]byte{byte(slices.Index(ops, ifc.OpManagePages)), 15, 1 | 1<<4, 8}, []byte{0, 0, 0, 0, 0, 0, 0, 1}, make([]byte, 8)))
	f.Fuzz(func(t *testing.T, data []byte) {
		m := newMachine(t, newHub(), 1)
		m.newNetdev()
		for len(data) > 4 {
			op := ops[int(data[0])%len(ops)]
			l, n := ifc.Layouts[op], min(int(data[1])+1, len(data)-4)
			in := make([]byte, l.In+int(data[2]&3)*64)
			at := int(data[3]) % max(len(in)-n, 1)
			copy(in[max(at, 8):], data[4:4+n])
			be.PutUint16(in, op)
			be.PutUint16(in[6:], uint16(data[2]>>4))
			for _, r := range l.Reserved {
				if r.Off()+r.Bits() <= len(in)*8 {
					r.Clear(in)
				}
			}
			if out := m.dev.execute(in, max(l.Out, 16)+int(data[2]&4)*128); len(out) < 16 {
				t.Fatalf("%s: %d bytes of output", ifc.Layouts[op].Name, len(out))
			}
			data = data[4+n:]
		}
	})
}

// FuzzDelivery changes the entry of a command and the blocks of its input: the command is executed, or the
// entry says why not.
func FuzzDelivery(f *testing.F) {
	f.Add(uint8(0), []byte(nil), []byte(nil), uint16(16), uint16(16))
	f.Add(uint8(63), []byte{0, 1}, []byte(nil), uint16(1200), uint16(0x1010))
	f.Add(uint8(1), []byte{1}, []byte(nil), uint16(16), uint16(16))
	f.Add(uint8(8), []byte{0, 0, 0, 0xff}, []byte{blockNumber: 1}, uint16(600), uint16(600))
	f.Fuzz(func(t *testing.T, at uint8, change, block []byte, inLen, outLen uint16) {
		m := newMachine(t, newHub(), 1)
		in := append(queryCap(0), make([]byte, inLen)...)
		e := m.newEntry(0, in[:max(int(inLen), 16)], max(int(outLen), 16))
		for i, v := range change {
			if i += int(at); i < commandSize-1 { // the last byte is the owner
				e.desc()[i] ^= v
			}
		}
		if len(e.in.addr) > 0 {
			b := e.in.at(0, min(len(block), pageBytes))
			for i := range b {
				b[i] ^= block[i]
			}
		}
		e.ring()
	})
}

// FuzzRegisters stores anything to registers, doorbells and the configuration, where it injects faults,
// while requests are executed.
func FuzzRegisters(f *testing.F) {
	f.Add([]byte{0, 0, segDoorbell & 0xff, 4, 0, 0, 0, 1, 0, 0, 0, 0})
	f.Add([]byte{0, segCommandsLow >> 8, segCommandsLow & 0xff, 4, 0, 0, 0, 1, 0, 0, 0, 0})
	f.Add([]byte{0, segHealth >> 8, segHealth & 0xff, 8, 0, 0, 0, 1, 0, 0, 0, 0})
	f.Add([]byte{1, 0, uarCQ, 8, 0, 0, 0, 1, 0, 0, 0, 1})
	for kind := FaultNone; kind <= FaultAfterEvent; kind++ {
		f.Add([]byte{2, 0, pcidev.FaultRegister, 4, byte(kind), 1, 1, 0, 0, 0, 0, 0})
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		m := newMachine(t, newHub(), 1)
		x, _ := pair(m, m, ifc.QpTypeRc)
		for ; len(data) >= 12; data = data[12:] {
			region, off, size := vfiouser.BAR0, uint64(be.Uint16(data[1:])), 4+uint64(data[3]>>1&4)
			switch data[0] % 3 {
			case 1:
				off = uint64(m.uar)<<12 | off&0xfff
			case 2:
				region, off = vfiouser.Config, off&0xffc
			}
			off &^= size - 1
			m.dev.Write(region, off, data[4:4+size])
			m.dev.Read(region, off, make([]byte, size))
			x.post(ifc.OpcodeNop, update, 0)
		}
	})
}
