//go:build linux

package connectx

import (
	"sync"

	"github.com/goverbs/verbs/lab/connectx/internal/ifc"
	"github.com/goverbs/verbs/lab/internal/pcidev"
	"github.com/goverbs/verbs/lab/vfiouser"
)

// commandQueue is the driver's queue of commands: a page with up to 32 entries of 64 bytes, struct
// mlx5_cmd_layout. The driver fills in an entry, gives it to the adapter by the lowest bit of its last
// byte, and sets the entry's bit in the doorbell (mlx5_core's cmd_work_handler). The adapter clears the
// lowest bit again when the output is there, and raises an event. The driver's first commands come
// before there is an EQ: it polls the bit.
type commandQueue struct {
	env     *env
	eqs     *eqTable
	execute func(in []byte, outLen int) []byte
	pcidev.Commands

	mu   sync.Mutex
	addr uint64         // of the page, as the driver has set it
	view *vfiouser.View // of the page at address at, or nil
	at   uint64
}

const (
	logCommands      = 5
	logCommandStride = 6
	commandSize      = 1 << logCommandStride
	inlineSize       = 16 // the first bytes of input and output are in the entry
	leastOut         = 8  // status and syndrome

	// maxCommand bounds inputs and outputs. The driver's largest are lists of pages, a few MiB.
	maxCommand = 32 << 20
)

// Input and output beyond inlineSize are in a chain of blocks, struct mlx5_cmd_prot_block: 512 bytes of
// data, and the address of the next block, the number of this one from 0, and the token of the command
// that the blocks belong to.
const (
	blockData   = 512
	blockNext   = 560
	blockNumber = 568
	blockToken  = 573
	blockSize   = 576
)

// Delivery status of a command that is not executed, MLX5_CMD_DELIVERY_STAT_* of mlx5_core's cmd.c.
const (
	deliveryToken       = 0x2
	deliveryBlockNumber = 0x3
	deliveryOutAlign    = 0x4
	deliveryInAlign     = 0x5
	deliveryInLength    = 0x7
	deliveryOutLength   = 0x8
	deliveryReserved    = 0x9
	deliveryDescriptor  = 0x10
)

func (q *commandQueue) begin() {
	q.Commands = pcidev.Commands{Execute: q.command, Dead: q.env.faults.Dead.Load}
	q.Begin()
}

// unmap forgets where the queue is.
func (q *commandQueue) unmap() {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.view != nil {
		q.view.Close()
	}
	q.view, q.addr = nil, 0
}

// setAddress takes the upper or lower half of the queue's address.
func (q *commandQueue) setAddress(mask, value uint64) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.addr = q.addr&^mask | value&mask
}

func (q *commandQueue) address() uint64 {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.addr
}

// command executes the command of an entry.
func (q *commandQueue) command(slot int) {
	if view := q.page(); view != nil {
		q.take(view, slot)
	}
}

// page returns the queue's page, which Quiesce protects from unmap. Without memory there is nowhere to
// answer: the driver's command times out.
func (q *commandQueue) page() *vfiouser.View {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.view != nil && q.at != q.addr {
		q.view.Close()
		q.view = nil
	}
	if q.view == nil {
		v, err := q.env.mem.Pages([]uint64{q.addr}, 4096)
		if err != nil {
			return nil
		}
		q.view, q.at = v, q.addr
	}
	return q.view
}

// take executes the command of an entry, and hands the entry back to the driver.
func (q *commandQueue) take(view *vfiouser.View, slot int) {
	at := slot * commandSize
	entry := view.Bytes()[at : at+commandSize]
	own := view.Word(at + 60)
	if pcidev.BigEndian(own.Load())&1 == 0 { // the entry is the driver's
		return
	}
	// The EQ for the event is the one that exists before the command: the driver polls for the
	// completion of the CREATE_EQ that makes it, and would count an event as a second completion.
	eq := q.eqs.subscribed(ifc.EventCmd)
	desc := append([]byte(nil), entry...)
	delivery := q.deliver(desc, entry)
	own.Store(pcidev.BigEndian(uint32(desc[60])<<24 | uint32(delivery)<<1))
	if eq != nil {
		var data [28]byte
		be.PutUint32(data[:], 1<<slot)
		q.eqs.post(eq, ifc.EventCmd, 0, data[:])
	}
}

// deliver reads the input, executes the command and writes the output. desc is the copy of the entry
// from which all fields are read, so that the guest cannot change them after the checks: type at 0,
// length and address of the input at 4 and 8, the input's start at 16, the output's at 32, address and
// length of the output at 48 and 56, the token at 60.
func (q *commandQueue) deliver(desc, entry []byte) (delivery byte) {
	const xport = 7 // MLX5_PCI_CMD_XPORT
	inLen, outLen := int(be.Uint32(desc[4:])), int(be.Uint32(desc[56:]))
	inPtr, outPtr, token := be.Uint64(desc[8:]), be.Uint64(desc[48:]), desc[60]
	switch {
	case desc[0] != xport:
		return deliveryDescriptor
	case desc[1]|desc[2]|desc[3]|desc[62] != 0:
		return deliveryReserved
	case inLen < inlineSize || inLen > maxCommand:
		return deliveryInLength
	case outLen < leastOut || outLen > maxCommand:
		return deliveryOutLength
	case inPtr&0x1ff != 0:
		return deliveryInAlign
	case outPtr&0x1ff != 0:
		return deliveryOutAlign
	}
	in := append(make([]byte, 0, inLen), desc[16:32]...)
	delivery = q.blocks(inPtr, inLen-inlineSize, token, func(_ uint64, data []byte) { in = append(in, data...) })
	if delivery != 0 {
		return delivery
	}
	out := q.execute(in, outLen)
	copy(entry[32:48], out)
	out = out[min(len(out), inlineSize):]
	return q.blocks(outPtr, len(out), token, func(addr uint64, data []byte) {
		q.env.mem.WriteAt(out[:len(data)], addr)
		out = out[len(data):]
	})
}

// blocks calls do for each block of a chain, with its address and its part of left bytes of data. The
// length bounds the walk, whatever the guest chains.
func (q *commandQueue) blocks(addr uint64, left int, token byte, do func(addr uint64, data []byte)) (delivery byte) {
	var block [blockSize]byte
	for n := uint32(0); left > 0; n++ {
		if q.env.mem.ReadAt(block[:], addr) != nil {
			return deliveryDescriptor
		}
		// The signatures are not checked: mlx5_core's handle_hca_cap disables them by
		// cmdif_checksum.
		if be.Uint32(block[blockNumber:]) != n {
			return deliveryBlockNumber
		}
		if block[blockToken] != token {
			return deliveryToken
		}
		size := min(left, blockData)
		do(addr, block[:size])
		left -= size
		addr = be.Uint64(block[blockNext:])
	}
	return 0
}
