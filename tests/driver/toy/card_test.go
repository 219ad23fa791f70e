package toy_test

import (
	"os"
	"testing"

	"example.com/driver/toy"
	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/mmap"
	"github.com/goverbs/verbs/provider"
	"github.com/goverbs/verbs/providertest"
	"github.com/goverbs/verbs/uverbs"
)

// card plays the toy card: it does what the queues say, and writes completions.
type card struct {
	kernel *providertest.Kernel
	cqs    map[uint32]*cardCQ // by handle
	qps    map[uint32]*cardQP // by number
}

type cardCQ struct {
	handle uint32
	ring   []toy.ToyCqe
	made   uint32
}

type cardQP struct {
	num            uint32
	sends          []toy.ToyWqe
	recvs          []toy.ToyRqe
	record         []byte
	sent, received uint32
	sendCQ, recvCQ *cardCQ
}

// newCard opens a toy card, whose kernel answers from a table.
func newCard(t testing.TB) (*card, *uverbs.Context) {
	t.Helper()
	if !mmap.OrdersDevice {
		t.Skip("toy does not run on this architecture")
	}
	c := &card{cqs: map[uint32]*cardCQ{}, qps: map[uint32]*cardQP{}}
	c.kernel = &providertest.Kernel{
		ID:        toy.Driver{}.ID(),
		Attr:      verbs.DeviceAttr{MaxQPWR: 1 << 10, MaxSGE: toy.TOY_MAX_SGE, MaxCQE: 1 << 12},
		Port:      verbs.PortAttr{State: verbs.PortActive, ActiveMTU: 5, MaxMessage: 1 << 20, LinkLayer: verbs.LinkEthernet},
		Registers: make([]byte, os.Getpagesize()),
		GetContext: func(u provider.UHW) error {
			providertest.Answer(u, toy.ToyAllocUcontextResp{MaxInline: toy.TOY_MAX_INLINE})
			return nil
		},
		CreateCQ: func(cq *provider.CQInfo, u provider.UHW) error {
			req := providertest.Request[toy.ToyCreateCq](u)
			c.cqs[cq.Handle] = &cardCQ{handle: cq.Handle, ring: memory[toy.ToyCqe](req.BufAddr, cq.Depth)}
			providertest.Answer(u, toy.ToyCreateCqResp{Cqn: cq.Handle})
			return nil
		},
		CreateQP: func(qp *providertest.QP, u provider.UHW) error {
			req := providertest.Request[toy.ToyCreateQp](u)
			c.qps[qp.QPNum] = &cardQP{
				num: qp.QPNum, sends: memory[toy.ToyWqe](req.SendAddr, qp.Cap.MaxSendWR), recvs: memory[toy.ToyRqe](req.RecvAddr, qp.Cap.MaxRecvWR),
				record: providertest.Memory(req.DbAddr, 16), sendCQ: c.cqs[qp.SendCQ], recvCQ: c.cqs[qp.RecvCQ],
			}
			return nil
		},
	}
	remove, err := c.kernel.Register("toy0")
	check(t, err)
	defer remove()
	ctx, err := uverbs.Open("toy0")
	check(t, err)
	t.Cleanup(func() {
		check(t, ctx.Close())
		if n := c.kernel.Objects(); n != 0 {
			t.Errorf("%d objects are not destroyed", n)
		}
	})
	return c, ctx
}

// memory returns n elements of a queue.
func memory[T any](addr uint64, n int) []T {
	return mmap.Slice[T](providertest.Memory(addr, n*len(mmap.Bytes(new(T)))), 0, n)
}

// complete writes a completion.
func (q *cardCQ) complete(e toy.ToyCqe) {
	size := uint32(len(q.ring))
	at := &q.ring[q.made%size]
	owner := mmap.Word(mmap.Bytes(at), len(mmap.Bytes(at))-4)
	e.Owner = owner.Load()
	*at = e
	owner.Store(1 - q.made/size%2) // the owner last
	q.made++
}

// run does all that has been posted to a QP, which is connected to peer.
func (c *card) run(q, peer *cardQP) {
	for end := uint32(mmap.Word64(q.record, 0).Load()); q.sent != end; q.sent++ {
		w := &q.sends[q.sent%uint32(len(q.sends))]
		var local []byte
		var pieces [][]byte
		switch {
		case w.Flags&toy.TOY_INLINE != 0:
			pieces = [][]byte{mmap.Bytes(&w.Sge)[:w.Num]}
		default:
			for _, s := range w.Sge[:w.Num] {
				pieces = append(pieces, providertest.Memory(s.Addr, int(s.Length)))
			}
		}
		for _, p := range pieces {
			local = append(local, p...)
		}
		done := toy.ToyCqe{Qpn: q.num, Index: q.sent, Opcode: w.Opcode, Length: uint32(len(local))}
		switch w.Opcode {
		case toy.TOY_SEND:
			r := peer.recvs[peer.received%uint32(len(peer.recvs))]
			rest := local
			for _, s := range r.Sge {
				rest = rest[copy(providertest.Memory(s.Addr, int(s.Length)), rest):]
			}
			peer.recvCQ.complete(toy.ToyCqe{
				Qpn: peer.num, Index: peer.received, Opcode: toy.TOY_RECV, Flags: w.Flags & toy.TOY_IMM, Imm: w.Imm, Length: uint32(len(local)),
			})
			peer.received++
			c.kernel.Event(peer.recvCQ.handle)
		case toy.TOY_WRITE:
			copy(providertest.Memory(w.RemoteAddr, len(local)), local)
		case toy.TOY_READ:
			remote := providertest.Memory(w.RemoteAddr, len(local))
			for _, p := range pieces {
				remote = remote[copy(p, remote):]
			}
		}
		if w.Flags&toy.TOY_SIGNALED != 0 {
			q.sendCQ.complete(done)
		}
	}
}

func check(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
