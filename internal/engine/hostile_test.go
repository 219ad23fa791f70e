package engine

import (
	"bytes"
	"encoding/binary"
	"math/rand/v2"
	"net/netip"
	"testing"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/abi"
	"github.com/goverbs/verbs/internal/netif"
	"github.com/goverbs/verbs/internal/roce"
)

// victim is a device at which packets are thrown.
type victim struct {
	n     *node
	qps   []*conn
	guard []byte // around the memory of n
	at    int
	recv  *receiver
	flow  roce.Flow
	src   netip.AddrPort
}

const guardSize = 4096

// newVictim makes a device with connected QPs of all types, whose peer does not
// exist.
func newVictim(t testing.TB) *victim {
	net := newTestNetwork(1, faults{})
	n := newNode(t, net, 64, addrA)
	v := &victim{n: n, guard: alignedBytes(3 * guardSize), at: guardSize, src: netip.AddrPortFrom(addrB, roce.Port)}
	n.mem = v.guard[guardSize : 2*guardSize]
	n.mr = n.register(n.mem, verbs.AccessAll|verbs.AccessFlushGlobal)
	v.recv = newReceiver(n.dev, n.dev.gids.at(0))
	v.flow, _ = roce.NewFlow(v.src, n.dev.gids.at(0).local)
	v.reset()
	return v
}

// reset replaces the QPs.
func (v *victim) reset() {
	for _, q := range v.qps {
		q.Destroy()
	}
	v.qps = nil
	for _, typ := range []verbs.QPType{verbs.RC, verbs.UC, verbs.UD} {
		q := v.n.newQP(typ, func(i *QPInit) { i.Cap.MaxSendWR, i.Cap.MaxRecvWR, i.Cap.MaxSendSGE, i.Cap.MaxRecvSGE = 3, 15, 1, 2 })
		a := q.attrs(q)
		a.AV.DGID = addrB.As16()
		q.connectTo(a)
		v.qps = append(v.qps, q)
		for i := range uint64(15) {
			q.postRecv(i, v.n.sge(int(i)*100, 100), v.n.sge(2000, 2000))
		}
		if typ == verbs.RC {
			q.post(verbs.SendWR{Opcode: verbs.OpRDMARead, SGL: []verbs.SGE{v.n.sge(0, 3000)}},
				verbs.SendWR{Opcode: verbs.OpFetchAdd, SGL: []verbs.SGE{v.n.sge(0, 8)}},
				verbs.SendWR{Opcode: verbs.OpSend, SGL: []verbs.SGE{v.n.sge(0, 3000)}})
		}
	}
}

// throw passes a packet with the right ICRC to the device. The first byte selects the QP,
// the second one and bits of the third one whether PSN, key and address are made valid.
func (v *victim) throw(data []byte) {
	if len(data) < 3+roce.BTHSize {
		return
	}
	sel, data := data[:3], bytes.Clone(data[3:])
	be := binary.BigEndian
	qp := v.qps[int(sel[0])%len(v.qps)]
	o := roce.Opcode(data[0])
	if sel[0]&0x80 == 0 {
		be.PutUint16(data[2:], 0xffff)
		be.PutUint32(data[4:], qp.Num())
	}
	data[1] &^= 0x0f
	switch psn := qp.Query(); {
	case sel[1]&1 != 0:
		be.PutUint32(data[8:], psn.RQPSN&0xffffff|uint32(data[8])<<24)
	case sel[1]&2 != 0:
		be.PutUint32(data[8:], 0xfffff0+uint32(sel[1]>>4)&0xffffff)
	}
	if sel[2]&1 != 0 && len(data) >= o.HeaderLen() {
		switch {
		case o.Has(roce.HasRETH):
			off := o.HeaderLen() - roce.RETHSize
			if o.Has(roce.HasImmDt) {
				off -= roce.ImmDtSize
			}
			be.PutUint64(data[off:], v.n.addr(int(sel[2])*16))
			be.PutUint32(data[off+8:], v.n.mr.RKey())
			if sel[2]&2 != 0 {
				be.PutUint32(data[off+12:], uint32(len(data)-o.HeaderLen()))
			}
		case o.Has(roce.HasAtomicETH):
			be.PutUint64(data[12:], v.n.addr(int(sel[2])*8))
			be.PutUint32(data[20:], v.n.mr.RKey())
		case o.Has(roce.HasDETH):
			be.PutUint32(data[12:], testQKey)
		}
	}
	for len(data)%4 != 0 {
		data = append(data, 0)
	}
	pkt := v.flow.AppendICRC(data, 0)
	v.recv.receive([]netif.Packet{{Src: v.src, Dst: v.n.dev.gids.at(0).local, Data: pkt, IDKnown: true}})
	if !bytes.Equal(v.guard[:guardSize], make([]byte, guardSize)) || !bytes.Equal(v.guard[2*guardSize:], make([]byte, guardSize)) {
		panic("memory outside of the region has changed")
	}
	for _, q := range v.qps {
		if q.Query().State == verbs.StateErr {
			v.reset()
			break
		}
	}
	for _, cq := range []*testCQ{v.n.cq, v.n.rcq} {
		for _, ok := cq.poll(); ok; _, ok = cq.poll() {
		}
	}
}

// TestHostilePackets throws random packets, most of them nearly valid, at a device.
func TestHostilePackets(t *testing.T) {
	v := newVictim(t)
	rng := rand.New(rand.NewPCG(1, 2))
	opcodes := []roce.Opcode{}
	for o := range 256 {
		if roce.Opcode(o).Known() {
			opcodes = append(opcodes, roce.Opcode(o))
		}
	}
	rounds := 50000
	if testing.Short() {
		rounds = 10000
	}
	for range rounds {
		o := opcodes[rng.IntN(len(opcodes))]
		data := make([]byte, 3+o.HeaderLen()+rng.IntN(3)*rng.IntN(testMTU+8))
		if rng.IntN(4) == 0 {
			data = make([]byte, 3+o.HeaderLen()+testMTU)
		}
		for i := range data {
			data[i] = byte(rng.Uint32())
		}
		data[3] = byte(o)
		switch o.Transport() {
		case roce.RC:
			data[0] = 0
		case roce.UC:
			data[0] = 1
		case roce.UD:
			data[0] = 2
		}
		if rng.IntN(20) == 0 {
			data[0] = byte(rng.Uint32())
		}
		data[4] &= 0x8f // mostly no padding
		v.throw(data)
	}
	if v.n.counter("rcvd_pkts") < uint64(rounds/8) {
		t.Errorf("only %d of %d packets were accepted", v.n.counter("rcvd_pkts"), rounds)
	}
}

func FuzzPackets(f *testing.F) {
	for o := range 256 {
		if o := roce.Opcode(o); o.Known() {
			data := make([]byte, 3+o.HeaderLen(), 2000)
			data[0], data[1], data[2], data[3] = byte(o>>5), 1, 3, byte(o)
			f.Add(data)
			f.Add(data[:len(data)+testMTU])
			data = bytes.Clone(data[:len(data)+8])
			data[2] = 7
			f.Add(data) // with a valid key
		}
	}
	v := newVictim(f)
	f.Fuzz(func(t *testing.T, data []byte) {
		v.n.t = t
		v.throw(data)
		v.n.dev.refused(v.src, data)
	})
}

// TestHostileRings fills rings with random bytes.
func TestHostileRings(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 4))
	rounds := 3000
	if testing.Short() {
		rounds = 300
	}
	n := newNode(t, newTestNetwork(1, faults{}), 4096, addrA)
	small := func(i *QPInit) {
		i.Cap = verbs.QPCap{MaxSendWR: 7, MaxRecvWR: 7, MaxSendSGE: 3, MaxRecvSGE: 2, MaxInline: 50}
	}
	for range rounds {
		typ := []verbs.QPType{verbs.RC, verbs.UC, verbs.UD}[rng.IntN(3)]
		x, y := n.newQP(typ, small), n.newQP(typ, small)
		x.connect(y)
		y.connect(x)
		for _, r := range []*Ring{x.SendRing(), x.RecvRing(), y.SendRing(), y.RecvRing()} {
			from := 0
			if rng.IntN(2) == 0 {
				from = ringHeader // keep the indices
			}
			for i := from; i < len(r.mem); i++ {
				r.mem[i] = byte(rng.Uint32())
			}
			r.prod.Store(rng.Uint32())
			for i := range r.mask + 1 { // make some requests nearly valid
				if rng.IntN(4) == 0 || r.size < sendWQESize {
					continue
				}
				w := r.sendWQE(i)
				w.Wr.Opcode &= 15
				w.Dma.NumSge &= 3
				w.Dma.Length &= 0xfff
				for k := range 3 {
					binary.NativeEndian.PutUint64(r.elem(i)[sendWQESize+k*sgeSize:], n.addr(0))
					binary.NativeEndian.PutUint32(r.elem(i)[sendWQESize+k*sgeSize+8:], rng.Uint32()&0xfff)
					binary.NativeEndian.PutUint32(r.elem(i)[sendWQESize+k*sgeSize+12:], n.mr.LKey())
				}
			}
		}
		x.Doorbell()
		y.Doorbell()
		x.Modify(&verbs.QPAttr{State: verbs.StateErr}, verbs.MaskState)
		y.Modify(&verbs.QPAttr{State: verbs.StateErr}, verbs.MaskState)
		x.Destroy()
		y.Destroy()
		for _, cq := range []*testCQ{n.cq, n.rcq} {
			for _, ok := cq.poll(); ok; _, ok = cq.poll() {
			}
		}
	}
	// A CQ whose header the program overwrites.
	cq := n.newCQ(3)
	for range 1000 {
		r := cq.Ring()
		for i := range ringHeader {
			r.mem[i] = byte(rng.Uint32())
		}
		wc := abi.IbUverbsWc{WrId: 1}
		cq.post(&wc, true)
		cq.Resize(1 + rng.IntN(10))
	}
}
