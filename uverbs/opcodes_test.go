//go:build linux

package uverbs_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/abi"
	"github.com/goverbs/verbs/internal/labtest"
	"github.com/goverbs/verbs/rdmatest"
	"github.com/goverbs/verbs/uverbs"
)

// payload is the way in which a request carries its data.
type payload string

const (
	inline payload = "inline"
	none   payload = "0 SGEs"
	one    payload = "1 SGE"
	most   payload = "max SGEs"
)

const maxSGE = 4

// opcode is a row of the table of TestOpcodes.
type opcode struct {
	op           verbs.Opcode
	types        []verbs.QPType
	siw          bool
	needs        uint64 // capability
	recv         verbs.WCOpcode
	consumesRecv bool // consumes a receive
	sent         verbs.WCOpcode
	size         int // of the data; 0 means any
	refuse       map[payload]error
	// set completes wr for n bytes of a's memory. It returns a function that checks the
	// result.
	set func(m *opMatrix, wr *verbs.SendWR, n int) (check func() error)
}

var rcOnly, connected, all = []verbs.QPType{verbs.RC}, []verbs.QPType{verbs.RC, verbs.UC}, []verbs.QPType{verbs.RC, verbs.UC, verbs.UD}

func noData(err error) map[payload]error {
	return map[payload]error{inline: verbs.ErrInlineOp, one: err, most: err}
}

var opcodes = []opcode{
	{op: verbs.OpSend, types: all, siw: true, consumesRecv: true, recv: verbs.WCRecv, sent: verbs.WCSend, set: setSend},
	{op: verbs.OpSendImm, types: all, consumesRecv: true, recv: verbs.WCRecv, sent: verbs.WCSend, set: setSend},
	{op: verbs.OpSendInv, types: rcOnly, siw: true, consumesRecv: true, recv: verbs.WCRecv, sent: verbs.WCSend, set: setSendInv},
	{op: verbs.OpRDMAWrite, types: connected, siw: true, sent: verbs.WCRDMAWrite, set: setWrite},
	{op: verbs.OpRDMAWriteImm, types: connected, consumesRecv: true, recv: verbs.WCRecvRDMAImm, sent: verbs.WCRDMAWrite, set: setWrite},
	{op: verbs.OpRDMARead, types: rcOnly, siw: true, sent: verbs.WCRDMARead, set: setRead, refuse: map[payload]error{inline: verbs.ErrInlineOp}},
	{op: verbs.OpCompareSwap, types: rcOnly, sent: verbs.WCCompareSwap, size: 8, set: setAtomic, refuse: map[payload]error{inline: verbs.ErrInlineOp, none: verbs.ErrAtomicSGL, most: verbs.ErrAtomicSGL}},
	{op: verbs.OpFetchAdd, types: rcOnly, sent: verbs.WCFetchAdd, size: 8, set: setAtomic, refuse: map[payload]error{inline: verbs.ErrInlineOp, none: verbs.ErrAtomicSGL, most: verbs.ErrAtomicSGL}},
	{op: verbs.OpLocalInv, types: rcOnly, siw: true, sent: verbs.WCLocalInv, set: setLocalInv, refuse: noData(verbs.ErrTooManySGEs)},
	{op: verbs.OpBindMW, types: connected, sent: verbs.WCBindMW, set: setBind, refuse: noData(verbs.ErrTooManySGEs)},
	{op: verbs.OpFlush, types: rcOnly, needs: abi.IB_UVERBS_DEVICE_FLUSH_GLOBAL, sent: verbs.WCFlush, set: setFlush, refuse: noData(verbs.ErrTooManySGEs)},
	{op: verbs.OpAtomicWrite, types: rcOnly, needs: abi.IB_UVERBS_DEVICE_ATOMIC_WRITE, sent: verbs.WCAtomicWrite, size: 8, set: setWrite,
		refuse: map[payload]error{none: verbs.ErrAtomicWrite, one: verbs.ErrAtomicWrite, most: verbs.ErrAtomicWrite}},
	{op: verbs.OpRDMAReadInv, siw: true, sent: verbs.WCRDMARead, set: setReadInv, refuse: map[payload]error{inline: verbs.ErrInlineOp, none: errSkip}},
}

// errSkip marks combinations that are not tried: a key to invalidate must be that of an
// SGE.
var errSkip = errors.New("skip")

// TestOpcodes sends with every opcode and every payload, signaled and not, polled and
// with events, and checks the data and every field of the completions.
func TestOpcodes(t *testing.T) {
	labtest.RequireBoth(t)
	labtest.Each(t, func(t *testing.T, device string) {
		types := all
		if !labtest.Has(t, device, uverbs.FeatureUD) {
			types = rcOnly
		}
		for _, typ := range types {
			for _, events := range []bool{true, false}[:labtest.Rounds(2, 1)] {
				t.Run(fmt.Sprintf("%v/events=%v", typ, events), func(t *testing.T) {
					newOpMatrix(t, device, typ, events).run()
				})
			}
		}
	})
}

type opMatrix struct {
	t      *testing.T
	siw    bool
	mlx5   bool // invalidates on UC as well
	typ    verbs.QPType
	events bool
	a, b   *rdmatest.Endpoint
	caps   uint64
	access verbs.Access
	id     uint64
}

func newOpMatrix(t *testing.T, device string, typ verbs.QPType, events bool) *opMatrix {
	labtest.NeedsSGEs(t, device, maxSGE)
	m := &opMatrix{t: t, siw: labtest.Driver(t, device) == "siw", mlx5: labtest.Driver(t, device) == "mlx5", typ: typ, events: events}
	ctx := labtest.OpenDevice(t, device)
	attr := labtest.Must(ctx.QueryDevice())(t)
	m.caps, m.access = attr.CapFlags, verbs.AccessAll
	if m.siw {
		m.access &^= verbs.AccessRemoteAtomic
	} else {
		m.access |= verbs.AccessMWBind
	}
	if m.caps&abi.IB_UVERBS_DEVICE_FLUSH_GLOBAL != 0 {
		m.access |= verbs.AccessFlushGlobal
	}
	m.a, m.b = labtest.NewPair(t, device, rdmatest.PairOptions{
		Type: typ, Events: events, Access: m.access,
		Cap: verbs.QPCap{MaxSendWR: 64, MaxRecvWR: 64, MaxSendSGE: maxSGE, MaxRecvSGE: maxSGE, MaxInline: 64},
		RC:  uverbs.ConnectOptions{Access: m.access &^ verbs.AccessMWBind},
	})
	return m
}

func (m *opMatrix) run() {
	for _, op := range opcodes {
		for _, p := range []payload{inline, none, one, most} {
			for _, signaled := range []bool{true, false} {
				name := fmt.Sprintf("%v, %v, signaled %v", op.op, p, signaled)
				if err := m.one(op, p, signaled); err != nil {
					m.t.Fatalf("%s: %v", name, err)
				}
			}
		}
	}
}

// source fills a's memory and returns SGEs over n bytes of it, or the bytes.
func (m *opMatrix) source(p payload, n int) (sgl []verbs.SGE, inlined []byte) {
	mem := m.a.MR.Bytes()[:n]
	for i := range mem {
		mem[i] = byte(rand.Uint32())
	}
	switch p {
	case inline:
		return nil, slices.Clone(mem)
	case one:
		return []verbs.SGE{m.a.MR.SGE(0, n)}, nil
	case most:
		for i := range maxSGE {
			sgl = append(sgl, m.a.MR.SGE(i*n/maxSGE, n/maxSGE))
		}
	}
	return sgl, nil
}

func (m *opMatrix) one(op opcode, p payload, signaled bool) error {
	n := map[payload]int{inline: 40, none: 0, one: 600, most: 800}[p]
	if op.size > 0 && n > 0 {
		n = op.size
	}
	refuse := op.refuse[p]
	taken := slices.Contains(op.types, m.typ) || m.mlx5 && m.typ == verbs.UC && op.op == verbs.OpLocalInv
	switch taken = taken && m.caps&op.needs == op.needs; {
	case refuse == errSkip:
		return nil
	case m.siw && !op.siw, !m.siw && !taken:
		refuse = verbs.ErrOpcode
	case m.siw && refuse == nil && op.sent == verbs.WCRDMARead && p == most:
		refuse = verbs.ErrTooManySGEs // iWARP reads into one SGE
	case m.siw && op.op == verbs.OpSendInv && p == inline:
		refuse = verbs.ErrInlineOp
	}
	clear(m.b.MR.Bytes())
	m.id++
	wr := verbs.SendWR{ID: m.id, Opcode: op.op, Imm: rand.Uint32(), To: m.a.Peer}
	if signaled {
		wr.Flags = verbs.SendSignaled
	}
	wr.SGL, wr.Inline = m.source(p, n)
	if refuse != nil {
		wr.Args = &verbs.SendArgs{Bind: &verbs.MWBind{}}
		if _, err := m.a.QP.PostSend(wr); !errors.Is(err, refuse) {
			return fmt.Errorf("post: %v, want %v", err, refuse)
		}
		return nil
	}
	check := op.set(m, &wr, n)
	if op.consumesRecv {
		m.recv()
	}
	if _, err := m.a.QP.PostSend(wr); err != nil {
		return err
	}
	if op.consumesRecv {
		if err := m.received(op, &wr, n); err != nil {
			return err
		}
	}
	want := verbs.WC{ID: m.id, Opcode: op.sent, QPNum: m.a.QP.Num()}
	if !signaled {
		// The next completion is that of a later request. It is fenced, since siw lets
		// other requests overtake READs.
		m.recv()
		m.id++
		want.ID, want.Opcode = m.id, verbs.WCSend
		if _, err := m.a.QP.PostSend(verbs.SendWR{ID: m.id, Opcode: verbs.OpSend, Flags: verbs.SendSignaled | verbs.SendFence, To: m.a.Peer}); err != nil {
			return err
		}
		if _, err := m.wait(m.b.RecvCQ); err != nil {
			return err
		}
	}
	wc, err := m.wait(m.a.SendCQ)
	if err != nil {
		return err
	}
	if wc.Err() != nil || wc.ID != want.ID || wc.Opcode != want.Opcode || wc.QPNum != want.QPNum || wc.VendorErr != 0 {
		return fmt.Errorf("completion %+v (%v, %v), want %+v", wc, wc.Status, wc.Opcode, want)
	}
	if check != nil {
		return check()
	}
	return nil
}

// recv posts a receive that scatters into b's memory, after room for a GRH.
func (m *opMatrix) recv() {
	m.t.Helper()
	sgl := []verbs.SGE{m.b.MR.SGE(0, verbs.GRHSize), m.b.MR.SGE(verbs.GRHSize, 100), m.b.MR.SGE(verbs.GRHSize+100, 1), m.b.MR.SGE(verbs.GRHSize+101, 900)}
	if m.typ != verbs.UD {
		sgl = sgl[1:]
	}
	if _, err := m.b.PostRecv(verbs.RecvWR{ID: 1000 + m.id, SGL: sgl}); err != nil {
		m.t.Fatal(err)
	}
}

func (m *opMatrix) received(op opcode, wr *verbs.SendWR, n int) error {
	wc, err := m.wait(m.b.RecvCQ)
	if err != nil {
		return err
	}
	size, flags := n, verbs.WCFlags(0)
	if !m.siw { // RoCE messages have one on all transports, those of InfiniBand since the sides connect by GIDs
		flags = verbs.WCGRH
	}
	switch {
	case op.op == verbs.OpSendImm || op.op == verbs.OpRDMAWriteImm:
		flags |= verbs.WCWithImm
	case op.op == verbs.OpSendInv && !m.siw: // siw does not report it
		flags |= verbs.WCWithInv
	}
	if m.typ == verbs.UD {
		size += verbs.GRHSize
	}
	switch {
	case wc.Err() != nil, wc.ID != 1000+m.id, wc.Opcode != op.recv, wc.QPNum != m.b.QP.Num(), int(wc.ByteLen) != size, wc.Flags&^(verbs.WCIPv4|verbs.WCIPv6) != flags, wc.VendorErr != 0:
		return fmt.Errorf("receive %+v (%v, %v), want ID %d, opcode %v, QP %d, %d bytes, flags %#x", wc, wc.Status, wc.Opcode, 1000+m.id, op.recv, m.b.QP.Num(), size, flags)
	case flags&verbs.WCWithImm != 0 && wc.Imm() != wr.Imm:
		return fmt.Errorf("immediate %#x, want %#x", wc.Imm(), wr.Imm)
	case flags&verbs.WCWithInv != 0 && wc.InvalidatedRKey() != wr.RKey:
		return fmt.Errorf("invalidated %#x, want %#x", wc.InvalidatedRKey(), wr.RKey)
	case m.typ == verbs.UD && (wc.SrcQP != m.a.QP.Num() || wc.Port != 1):
		return fmt.Errorf("from QP %d at port %d, want %d, 1", wc.SrcQP, wc.Port, m.a.QP.Num())
	}
	return nil
}

func (m *opMatrix) wait(cq *uverbs.CQ) (verbs.WC, error) {
	var wc [1]verbs.WC
	ctx, cancel := context.WithTimeout(m.t.Context(), 5*time.Second)
	defer cancel()
	if m.events {
		_, err := cq.PollWait(ctx, wc[:])
		return wc[0], err
	}
	for ctx.Err() == nil {
		if cq.Poll(wc[:]) == 1 {
			return wc[0], nil
		}
	}
	return wc[0], errors.New("no completion")
}

// expectData returns a function that compares n bytes of b's memory with a's.
func (m *opMatrix) expectData(n, at int) func() error {
	want := slices.Clone(m.a.MR.Bytes()[:n])
	return func() error {
		got := m.b.MR.Bytes()[at:][:n]
		// On UC a request completes when it is sent.
		labtest.Until(m.t, "the data", func() bool { return m.typ != verbs.UC || bytes.Equal(got, want) })
		if !bytes.Equal(got, want) {
			return fmt.Errorf("%d bytes: got %.20x..., want %.20x...", n, got, want)
		}
		return nil
	}
}

func setSend(m *opMatrix, wr *verbs.SendWR, n int) func() error {
	return m.expectData(n, verbs.GRHSize)
}

func setWrite(m *opMatrix, wr *verbs.SendWR, n int) func() error {
	const at = 2048
	wr.RemoteAddr, wr.RKey = m.b.MR.Addr()+at, m.b.MR.RKey()
	return m.expectData(n, at)
}

func setRead(m *opMatrix, wr *verbs.SendWR, n int) func() error {
	const at = 4096
	src := m.b.MR.Bytes()[at:][:n]
	for i := range src {
		src[i] = byte(rand.Uint32())
	}
	wr.RemoteAddr, wr.RKey = m.b.MR.Addr()+at, m.b.MR.RKey()
	return func() error {
		if got := m.a.MR.Bytes()[:n]; !bytes.Equal(got, src) {
			return fmt.Errorf("read %.20x..., want %.20x...", got, src)
		}
		return nil
	}
}

func setAtomic(m *opMatrix, wr *verbs.SendWR, n int) func() error {
	const at = 1024
	word := m.b.MR.Bytes()[at:][:8]
	before := rand.Uint64()
	binary.NativeEndian.PutUint64(word, before)
	wr.RemoteAddr, wr.RKey = m.b.MR.Addr()+at, m.b.MR.RKey()
	want := before + 77
	wr.Args = &verbs.SendArgs{CompareAdd: 77}
	if wr.Opcode == verbs.OpCompareSwap {
		wr.Args = &verbs.SendArgs{CompareAdd: before, Swap: want}
	}
	return func() error {
		got, was := binary.NativeEndian.Uint64(word), binary.NativeEndian.Uint64(m.a.MR.Bytes())
		if got != want || was != before {
			return fmt.Errorf("%#x became %#x and %#x was returned, want %#x", before, got, was, want)
		}
		return nil
	}
}

// window binds a type 2 window to a side's region. On siw it makes another region.
func (m *opMatrix) window(s *rdmatest.Endpoint) (rkey uint32) {
	m.t.Helper()
	if m.siw {
		mr := labtest.Made(s.PD.AllocMR(4096, m.access, uverbs.MROptions{}))(m.t)
		return mr.RKey()
	}
	mw := labtest.Must(s.PD.AllocMW(verbs.MWType2))(m.t)
	m.t.Cleanup(func() { mw.Close() })
	rkey = labtest.Must(s.QP.BindMW(mw, uverbs.BindOptions{Flags: verbs.SendSignaled, MR: s.MR, Length: 64, Access: verbs.AccessRemoteWrite}))(m.t)
	if wc, err := m.wait(s.SendCQ); err != nil || wc.Err() != nil {
		m.t.Fatal(err, wc.Err())
	}
	return rkey
}

func setSendInv(m *opMatrix, wr *verbs.SendWR, n int) func() error {
	wr.RKey = m.window(m.b)
	return m.expectData(n, verbs.GRHSize)
}

func setLocalInv(m *opMatrix, wr *verbs.SendWR, n int) func() error {
	wr.RKey = m.window(m.a)
	return nil
}

func setReadInv(m *opMatrix, wr *verbs.SendWR, n int) func() error {
	mr := labtest.Made(m.a.PD.AllocMR(4096, m.access, uverbs.MROptions{}))(m.t)
	wr.SGL = []verbs.SGE{mr.SGE(0, n)}
	setRead(m, wr, n)
	src := m.b.MR.Bytes()[4096:][:n]
	return func() error {
		if got := mr.Bytes()[:n]; !bytes.Equal(got, src) {
			return fmt.Errorf("read %.20x..., want %.20x...", got, src)
		}
		return nil
	}
}

func setBind(m *opMatrix, wr *verbs.SendWR, n int) func() error {
	mw := labtest.Must(m.a.PD.AllocMW(verbs.MWType2))(m.t)
	m.t.Cleanup(func() { mw.Close() })
	wr.Args = &verbs.SendArgs{Bind: &verbs.MWBind{
		RKey: mw.RKey(), NewRKey: verbs.NextRKey(mw.RKey()), LKey: m.a.MR.LKey(), Addr: m.a.MR.Addr(), Length: 64,
		Access: verbs.AccessRemoteWrite,
	}}
	return nil
}

func setFlush(m *opMatrix, wr *verbs.SendWR, n int) func() error {
	wr.RemoteAddr, wr.RKey = m.b.MR.Addr(), m.b.MR.RKey()
	wr.Args = &verbs.SendArgs{Flush: verbs.Flush{Length: 4096, Type: verbs.FlushGlobal, Level: verbs.FlushRange}}
	return nil
}
