package engine

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	"github.com/goverbs/verbs"
)

// The memory of a side of the model: slots of the requests that it posts, slots of its
// receives, and memory that its peer writes and reads.
const (
	modelSlots  = 24
	modelSlot   = 16 << 10
	modelTarget = 64 << 10
	recvAt      = modelSlots * modelSlot
	targetAt    = 2 * recvAt
	modelMemory = targetAt + modelTarget
)

// modelSide posts random requests to its peer, and predicts memory and completions: RC
// executes requests in order and once, whatever the network does.
type modelSide struct {
	t      *testing.T
	rng    *rand.Rand
	c      *conn
	peer   *conn
	target []byte // the peer's memory, after all requests that have been posted
	slots  []modelOp
	posted uint64
	done   uint64

	recvs    uint64     // receives posted
	received uint64     // receives completed
	expected []modelMsg // what the peer has sent, in order
}

type modelOp struct {
	op   verbs.Opcode
	size int
	off  int
	want []byte // result of READs and atomics
}

type modelMsg struct {
	data []byte
	imm  uint32
	op   verbs.Opcode
}

func TestModel(t *testing.T) {
	seeds := 24
	if testing.Short() {
		seeds = 6
	}
	for _, f := range []faults{{}, {loss: .01}, {loss: .1}, {dup: .1}, {reorder: .1}, {loss: .05, dup: .05, reorder: .05}, {queue: 20}} {
		t.Run(fmt.Sprintf("%+v", f), func(t *testing.T) {
			for seed := range seeds {
				synctest.Test(t, func(t *testing.T) { runModel(t, uint64(seed), f, 300) })
			}
		})
	}
	t.Run("self", func(t *testing.T) {
		for seed := range seeds {
			synctest.Test(t, func(t *testing.T) {
				n := newNode(t, newTestNetwork(0, faults{}), modelMemory, addrA)
				runSides(t, uint64(seed), n, n.sibling(modelMemory), 300)
			})
		}
	})
}

func runModel(t *testing.T, seed uint64, f faults, requests int) {
	net := newTestNetwork(seed, f)
	a, b := newNode(t, net, modelMemory, addrA), newNode(t, net, modelMemory, addrB)
	runSides(t, seed, a, b, requests)
	a.dev.Close()
	b.dev.Close()
}

func runSides(t *testing.T, seed uint64, a, b *node, requests int) {
	x, y := pair(a, b, verbs.RC, func(q *verbs.QPAttr) { q.RQPSN = uint32(seed<<23) & 0xffffff; q.SQPSN = q.RQPSN })
	newSide := func(c, peer *conn, n uint64) *modelSide {
		return &modelSide{
			t: t, rng: rand.New(rand.NewPCG(seed, n)), c: c, peer: peer,
			target: bytes.Clone(peer.n.mem[targetAt:]), slots: make([]modelOp, modelSlots),
		}
	}
	s := [2]*modelSide{newSide(x, y, 1), newSide(y, x, 2)}
	for total := uint64(2 * requests); s[0].done+s[1].done < total; {
		for i, side := range s {
			side.addReceives()
			side.post(s[1-i], uint64(requests))
		}
		for _, side := range s {
			side.complete()
		}
		if t.Failed() {
			t.Fatalf("seed %d", seed)
		}
		time.Sleep(50 * time.Microsecond)
	}
	for _, side := range s {
		side.complete()
		if !bytes.Equal(side.target, side.peer.n.mem[targetAt:]) {
			t.Fatalf("seed %d: memory differs from the model", seed)
		}
		if len(side.expected) > 0 {
			t.Fatalf("seed %d: %d messages have not arrived", seed, len(side.expected))
		}
	}
}

// addReceives posts receives.
func (s *modelSide) addReceives() {
	for n := s.rng.IntN(4); n > 0 && s.recvs-s.received < modelSlots; n-- {
		s.c.postRecv(s.recvs, s.c.n.sge(recvAt+int(s.recvs%modelSlots)*modelSlot, modelSlot))
		s.recvs++
	}
}

// post posts random requests.
func (s *modelSide) post(peer *modelSide, limit uint64) {
	for n := s.rng.IntN(8); n > 0 && s.posted < limit && s.posted-s.done < modelSlots; n-- {
		slot := int(s.posted % modelSlots)
		at := slot * modelSlot
		mem := s.c.n.mem[at : at+modelSlot]
		size := s.size()
		off := s.rng.IntN(modelTarget - size)
		wr := verbs.SendWR{ID: s.posted, Flags: verbs.SendSignaled, Imm: s.rng.Uint32(), RemoteAddr: s.peer.n.addr(targetAt + off), RKey: s.peer.n.mr.RKey()}
		if s.rng.IntN(4) == 0 {
			wr.Flags |= verbs.SendFence
		}
		kind := s.rng.IntN(8)
		if kind >= 3 && kind != 6 && s.beingRead(off&^7, size+16) {
			kind = 0
		}
		op := modelOp{size: size, off: off}
		cut := s.rng.IntN(size + 1)
		wr.SGL = []verbs.SGE{s.c.n.sge(at, cut), s.c.n.sge(at+cut, size-cut)}
		switch kind {
		case 0, 1:
			wr.Opcode = verbs.OpSend
			s.random(mem[:size])
			peer.expected = append(peer.expected, modelMsg{data: bytes.Clone(mem[:size]), op: wr.Opcode})
		case 2:
			wr.Opcode = verbs.OpSendImm
			s.random(mem[:size])
			peer.expected = append(peer.expected, modelMsg{data: bytes.Clone(mem[:size]), imm: wr.Imm, op: wr.Opcode})
		case 3, 4:
			wr.Opcode = verbs.OpRDMAWrite
			s.random(mem[:size])
			copy(s.target[off:], mem[:size])
		case 5:
			wr.Opcode = verbs.OpRDMAWriteImm
			s.random(mem[:size])
			copy(s.target[off:], mem[:size])
			peer.expected = append(peer.expected, modelMsg{imm: wr.Imm, op: wr.Opcode})
		case 6:
			wr.Opcode = verbs.OpRDMARead
			op.want = bytes.Clone(s.target[off : off+size])
		case 7:
			op.size, wr.SGL = 8, []verbs.SGE{s.c.n.sge(at, 8)}
			off &^= 7
			wr.RemoteAddr = s.peer.n.addr(targetAt + off)
			op.want = bytes.Clone(s.target[off : off+8])
			wr.Opcode, wr.Args = verbs.OpFetchAdd, &verbs.SendArgs{CompareAdd: s.rng.Uint64()}
			binary.NativeEndian.PutUint64(s.target[off:], binary.NativeEndian.Uint64(op.want)+wr.Args.CompareAdd)
		}
		op.op = wr.Opcode
		s.slots[slot] = op
		s.c.put(&wr)
		s.posted++
	}
	if err := s.c.Doorbell(); err != nil {
		s.t.Fatal(err)
	}
}

// beingRead reports whether a READ that has not completed may return what a later request
// writes: one that is repeated returns what the memory contains then.
func (s *modelSide) beingRead(off, size int) bool {
	for i := s.done; i < s.posted; i++ {
		op := &s.slots[i%modelSlots]
		if op.op == verbs.OpRDMARead && op.off < off+size && off < op.off+op.size {
			return true
		}
	}
	return false
}

// size returns a random size, often one at a boundary.
func (s *modelSide) size() int {
	switch s.rng.IntN(4) {
	case 0:
		return s.rng.IntN(64)
	case 1:
		return testMTU*s.rng.IntN(5) + max(0, s.rng.IntN(3)-1)
	}
	return s.rng.IntN(modelSlot)
}

func (s *modelSide) random(b []byte) {
	for i := range b {
		b[i] = byte(s.rng.Uint32())
	}
}

// complete takes completions and compares them.
func (s *modelSide) complete() {
	for {
		wc, ok := s.c.n.cq.poll()
		if !ok {
			break
		}
		op := s.slots[s.done%modelSlots]
		if wc.ID != s.done || wc.Status != verbs.WCSuccess || wc.ByteLen != uint32(op.size) {
			s.t.Errorf("completion %d: %v, %d bytes; want %d, %d bytes", wc.ID, wc.Status.String(), wc.ByteLen, s.done, op.size)
		}
		at := int(s.done%modelSlots) * modelSlot
		if got := s.c.n.mem[at : at+len(op.want)]; !bytes.Equal(got, op.want) {
			s.t.Errorf("%v of %d bytes: wrong data", op.op, op.size)
		}
		s.done++
	}
	for {
		wc, ok := s.c.n.rcq.poll()
		if !ok {
			break
		}
		if wc.ID != s.received || wc.Status != verbs.WCSuccess || len(s.expected) == 0 {
			s.t.Errorf("receive %d: %v; want %d", wc.ID, wc.Status.String(), s.received)
			return
		}
		m := s.expected[0]
		s.expected = s.expected[1:]
		at := recvAt + int(s.received%modelSlots)*modelSlot
		if !bytes.Equal(s.c.n.mem[at:at+len(m.data)], m.data) || m.op == verbs.OpSend && int(wc.ByteLen) != len(m.data) {
			s.t.Errorf("receive %d: wrong data", wc.ID)
		}
		if m.op != verbs.OpSend && wc.Imm() != m.imm {
			s.t.Errorf("receive %d: immediate %#x, want %#x", wc.ID, wc.Imm(), m.imm)
		}
		s.received++
	}
}
