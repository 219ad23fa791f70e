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

	"github.com/goverbs/verbs/abi"
	"github.com/goverbs/verbs/internal/labtest"
	"github.com/goverbs/verbs/uverbs"
)

// payload is how a request carries its data.
type payload string

const (
	inline payload = "inline"
	none   payload = "0 SGEs"
	one    payload = "1 SGE"
	most   payload = "max SGEs"
)

const maxSGE = 4

// opcode is one row of the table that TestOpcodes works through.
type opcode struct {
	op     uverbs.Opcode
	types  []uverbs.QPType
	siw    bool
	needs  uint64 // capability
	recv   uverbs.WCOpcode
	takes  bool // consumes a receive
	sent   uverbs.WCOpcode
	size   int // of the data; 0: does not matter
	refuse map[payload]error
	// set completes wr for n bytes of a's memory; the result checks what came
	// of it.
	set func(m *opMatrix, wr *uverbs.SendWR, n int) (check func() error)
}

var rcOnly, connected, all = []uverbs.QPType{uverbs.RC}, []uverbs.QPType{uverbs.RC, uverbs.UC}, []uverbs.QPType{uverbs.RC, uverbs.UC, uverbs.UD}

func noData(err error) map[payload]error {
	return map[payload]error{inline: uverbs.ErrInlineOp, one: err, most: err}
}

var opcodes = []opcode{
	{op: uverbs.OpSend, types: all, siw: true, takes: true, recv: uverbs.WCRecv, sent: uverbs.WCSend, set: setSend},
	{op: uverbs.OpSendImm, types: all, takes: true, recv: uverbs.WCRecv, sent: uverbs.WCSend, set: setSend},
	{op: uverbs.OpSendInv, types: rcOnly, siw: true, takes: true, recv: uverbs.WCRecv, sent: uverbs.WCSend, set: setSendInv},
	{op: uverbs.OpRDMAWrite, types: connected, siw: true, sent: uverbs.WCRDMAWrite, set: setWrite},
	{op: uverbs.OpRDMAWriteImm, types: connected, takes: true, recv: uverbs.WCRecvRDMAImm, sent: uverbs.WCRDMAWrite, set: setWrite},
	{op: uverbs.OpRDMARead, types: rcOnly, siw: true, sent: uverbs.WCRDMARead, set: setRead, refuse: map[payload]error{inline: uverbs.ErrInlineOp}},
	{op: uverbs.OpCompareSwap, types: rcOnly, sent: uverbs.WCCompareSwap, size: 8, set: setAtomic, refuse: map[payload]error{inline: uverbs.ErrInlineOp, none: uverbs.ErrAtomicSGL}},
	{op: uverbs.OpFetchAdd, types: rcOnly, sent: uverbs.WCFetchAdd, size: 8, set: setAtomic, refuse: map[payload]error{inline: uverbs.ErrInlineOp, none: uverbs.ErrAtomicSGL}},
	{op: uverbs.OpLocalInv, types: rcOnly, siw: true, sent: uverbs.WCLocalInv, set: setLocalInv, refuse: noData(uverbs.ErrTooManySGEs)},
	{op: uverbs.OpBindMW, types: connected, sent: uverbs.WCBindMW, set: setBind, refuse: noData(uverbs.ErrTooManySGEs)},
	{op: uverbs.OpFlush, types: rcOnly, needs: abi.IB_UVERBS_DEVICE_FLUSH_GLOBAL, sent: uverbs.WCFlush, set: setFlush, refuse: noData(uverbs.ErrTooManySGEs)},
	{op: uverbs.OpAtomicWrite, types: rcOnly, needs: abi.IB_UVERBS_DEVICE_ATOMIC_WRITE, sent: uverbs.WCAtomicWrite, size: 8, set: setWrite,
		refuse: map[payload]error{none: uverbs.ErrAtomicWrite, one: uverbs.ErrAtomicWrite, most: uverbs.ErrAtomicWrite}},
	{op: uverbs.OpRDMAReadInv, siw: true, sent: uverbs.WCRDMARead, set: setReadInv, refuse: map[payload]error{inline: uverbs.ErrInlineOp, none: errSkip}},
}

// errSkip marks what makes no sense to try: a key to invalidate must be named
// by an SGE.
var errSkip = errors.New("skip")

// TestOpcodes sends with every opcode, every way to carry data, signaled and
// not, polled and with events, and checks content and every field of the
// completions.
func TestOpcodes(t *testing.T) {
	labtest.Each(t, func(t *testing.T, device string) {
		types := all
		if device == labtest.SIW {
			types = rcOnly
		}
		for _, typ := range types {
			for _, events := range []bool{false, true} {
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
	typ    uverbs.QPType
	events bool
	a, b   *labtest.Side
	caps   uint64
	access uverbs.Access
	id     uint64
}

func newOpMatrix(t *testing.T, device string, typ uverbs.QPType, events bool) *opMatrix {
	m := &opMatrix{t: t, siw: device == labtest.SIW, typ: typ, events: events}
	attr := labtest.Must(labtest.OpenDevice(t, device).QueryDevice())(t)
	m.caps, m.access = attr.DeviceCapFlagsEx, uverbs.AccessAll
	if m.siw {
		m.access &^= uverbs.AccessRemoteAtomic
	} else {
		m.access |= uverbs.AccessMWBind
	}
	if m.caps&abi.IB_UVERBS_DEVICE_FLUSH_GLOBAL != 0 {
		m.access |= uverbs.AccessFlushGlobal
	}
	m.a, m.b = labtest.NewPair(t, labtest.PairOptions{
		Device: device, Type: typ, Events: events, Access: m.access,
		Cap: uverbs.QPCap{MaxSendWR: 64, MaxRecvWR: 64, MaxSendSGE: maxSGE, MaxRecvSGE: maxSGE, MaxInline: 64},
		RC:  uverbs.ConnectOptions{Access: m.access &^ uverbs.AccessMWBind},
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
func (m *opMatrix) source(p payload, n int) (sgl []uverbs.SGE, inlined []byte) {
	mem := m.a.MR.Bytes()[:n]
	for i := range mem {
		mem[i] = byte(rand.Uint32())
	}
	switch p {
	case inline:
		return nil, slices.Clone(mem)
	case one:
		return []uverbs.SGE{m.a.MR.SGE(0, n)}, nil
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
	switch taken := slices.Contains(op.types, m.typ) && m.caps&op.needs == op.needs; {
	case refuse == errSkip:
		return nil
	case m.siw && !op.siw, !m.siw && !taken:
		refuse = uverbs.ErrOpcode
	case m.siw && refuse == nil && op.sent == uverbs.WCRDMARead && p == most:
		refuse = uverbs.ErrTooManySGEs // iWARP reads into one place
	case m.siw && op.op == uverbs.OpSendInv && p == inline:
		refuse = uverbs.ErrInlineOp
	}
	clear(m.b.MR.Bytes())
	m.id++
	wr := uverbs.SendWR{ID: m.id, Opcode: op.op, Imm: rand.Uint32(), To: m.a.Peer}
	if signaled {
		wr.Flags = uverbs.SendSignaled
	}
	wr.SGL, wr.Inline = m.source(p, n)
	if refuse != nil {
		wr.Bind = &uverbs.MWBind{}
		if _, err := m.a.QP.PostSend([]uverbs.SendWR{wr}); !errors.Is(err, refuse) {
			return fmt.Errorf("post: %v, want %v", err, refuse)
		}
		return nil
	}
	check := op.set(m, &wr, n)
	if op.takes {
		m.recv()
	}
	if _, err := m.a.QP.PostSend([]uverbs.SendWR{wr}); err != nil {
		return err
	}
	if op.takes {
		if err := m.received(op, &wr, n); err != nil {
			return err
		}
	}
	want := uverbs.WC{ID: m.id, Opcode: op.sent, QPNum: m.a.QP.Num()}
	if !signaled {
		// What completes next is a request behind it; fenced, since siw lets
		// others overtake READs.
		m.recv()
		m.id++
		want.ID, want.Opcode = m.id, uverbs.WCSend
		if _, err := m.a.QP.PostSend([]uverbs.SendWR{{ID: m.id, Opcode: uverbs.OpSend, Flags: uverbs.SendSignaled | uverbs.SendFence, To: m.a.Peer}}); err != nil {
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

// recv posts a receive that scatters into b's memory, behind room for a GRH.
func (m *opMatrix) recv() {
	m.t.Helper()
	sgl := []uverbs.SGE{m.b.MR.SGE(0, uverbs.GRHSize), m.b.MR.SGE(uverbs.GRHSize, 100), m.b.MR.SGE(uverbs.GRHSize+100, 1), m.b.MR.SGE(uverbs.GRHSize+101, 900)}
	if m.typ != uverbs.UD {
		sgl = sgl[1:]
	}
	if _, err := m.b.PostRecv(uverbs.RecvWR{ID: 1000 + m.id, SGL: sgl}); err != nil {
		m.t.Fatal(err)
	}
}

func (m *opMatrix) received(op opcode, wr *uverbs.SendWR, n int) error {
	wc, err := m.wait(m.b.RecvCQ)
	if err != nil {
		return err
	}
	size, flags := n, uverbs.WCFlags(0)
	if !m.siw {
		flags = uverbs.WCGRH // of all transports: there always is one
	}
	switch {
	case op.op == uverbs.OpSendImm || op.op == uverbs.OpRDMAWriteImm:
		flags |= uverbs.WCWithImm
	case op.op == uverbs.OpSendInv && !m.siw: // siw does not tell user space
		flags |= uverbs.WCWithInv
	}
	if m.typ == uverbs.UD {
		size += uverbs.GRHSize
	}
	switch {
	case wc.Err() != nil, wc.ID != 1000+m.id, wc.Opcode != op.recv, wc.QPNum != m.b.QP.Num(), int(wc.ByteLen) != size, wc.Flags != flags, wc.VendorErr != 0:
		return fmt.Errorf("receive %+v (%v, %v), want ID %d, opcode %v, QP %d, %d bytes, flags %#x", wc, wc.Status, wc.Opcode, 1000+m.id, op.recv, m.b.QP.Num(), size, flags)
	case flags&uverbs.WCWithImm != 0 && wc.Imm() != wr.Imm:
		return fmt.Errorf("immediate %#x, want %#x", wc.Imm(), wr.Imm)
	case flags&uverbs.WCWithInv != 0 && wc.InvalidatedRKey() != wr.InvalidateRKey:
		return fmt.Errorf("invalidated %#x, want %#x", wc.InvalidatedRKey(), wr.InvalidateRKey)
	case m.typ == uverbs.UD && (wc.SrcQP != m.a.QP.Num() || wc.Port != 1):
		return fmt.Errorf("from QP %d at port %d, want %d, 1", wc.SrcQP, wc.Port, m.a.QP.Num())
	}
	return nil
}

func (m *opMatrix) wait(cq *uverbs.CQ) (uverbs.WC, error) {
	var wc [1]uverbs.WC
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

// same compares what arrived in b's memory with a's.
func (m *opMatrix) same(n, at int) func() error {
	want := slices.Clone(m.a.MR.Bytes()[:n])
	return func() error {
		got := m.b.MR.Bytes()[at:][:n]
		// On UC a request completes when it is sent.
		for end := time.Now().Add(time.Second); m.typ == uverbs.UC && !bytes.Equal(got, want) && time.Now().Before(end); {
			time.Sleep(time.Millisecond)
		}
		if !bytes.Equal(got, want) {
			return fmt.Errorf("%d bytes: got %.20x..., want %.20x...", n, got, want)
		}
		return nil
	}
}

func setSend(m *opMatrix, wr *uverbs.SendWR, n int) func() error { return m.same(n, uverbs.GRHSize) }

func setWrite(m *opMatrix, wr *uverbs.SendWR, n int) func() error {
	const at = 2048
	wr.RemoteAddr, wr.RKey = m.b.MR.Addr()+at, m.b.MR.RKey()
	return m.same(n, at)
}

func setRead(m *opMatrix, wr *uverbs.SendWR, n int) func() error {
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

func setAtomic(m *opMatrix, wr *uverbs.SendWR, n int) func() error {
	const at = 1024
	word := m.b.MR.Bytes()[at:][:8]
	before := rand.Uint64()
	binary.NativeEndian.PutUint64(word, before)
	wr.RemoteAddr, wr.RKey = m.b.MR.Addr()+at, m.b.MR.RKey()
	want := before + 77
	wr.CompareAdd = 77
	if wr.Opcode == uverbs.OpCompareSwap {
		wr.CompareAdd, wr.Swap = before, want
	}
	return func() error {
		got, was := binary.NativeEndian.Uint64(word), binary.NativeEndian.Uint64(m.a.MR.Bytes())
		if got != want || was != before {
			return fmt.Errorf("%#x became %#x and %#x was returned, want %#x", before, got, was, want)
		}
		return nil
	}
}

// window binds a type 2 window of a side to its region, which siw does without.
func (m *opMatrix) window(s *labtest.Side) (rkey uint32) {
	m.t.Helper()
	if m.siw {
		mr := labtest.Must(s.PD.AllocMR(4096, m.access, uverbs.MROptions{}))(m.t)
		labtest.Close(m.t, mr)
		return mr.RKey()
	}
	mw := labtest.Must(s.PD.AllocMW(uverbs.MWType2))(m.t)
	m.t.Cleanup(func() { mw.Close() })
	rkey = labtest.Must(s.QP.BindMW(mw, uverbs.BindOptions{Flags: uverbs.SendSignaled, MR: s.MR, Length: 64, Access: uverbs.AccessRemoteWrite}))(m.t)
	if wc, err := m.wait(s.SendCQ); err != nil || wc.Err() != nil {
		m.t.Fatal(err, wc.Err())
	}
	return rkey
}

func setSendInv(m *opMatrix, wr *uverbs.SendWR, n int) func() error {
	wr.InvalidateRKey = m.window(m.b)
	return m.same(n, uverbs.GRHSize)
}

func setLocalInv(m *opMatrix, wr *uverbs.SendWR, n int) func() error {
	wr.InvalidateRKey = m.window(m.a)
	return nil
}

func setReadInv(m *opMatrix, wr *uverbs.SendWR, n int) func() error {
	mr := labtest.Must(m.a.PD.AllocMR(4096, m.access, uverbs.MROptions{}))(m.t)
	labtest.Close(m.t, mr)
	wr.SGL = []uverbs.SGE{mr.SGE(0, n)}
	setRead(m, wr, n)
	src := m.b.MR.Bytes()[4096:][:n]
	return func() error {
		if got := mr.Bytes()[:n]; !bytes.Equal(got, src) {
			return fmt.Errorf("read %.20x..., want %.20x...", got, src)
		}
		return nil
	}
}

func setBind(m *opMatrix, wr *uverbs.SendWR, n int) func() error {
	mw := labtest.Must(m.a.PD.AllocMW(uverbs.MWType2))(m.t)
	m.t.Cleanup(func() { mw.Close() })
	wr.Bind = &uverbs.MWBind{
		RKey: mw.RKey(), NewRKey: uverbs.NextRKey(mw.RKey()), LKey: m.a.MR.LKey(), Addr: m.a.MR.Addr(), Length: 64,
		Access: uint32(uverbs.AccessRemoteWrite),
	}
	return nil
}

func setFlush(m *opMatrix, wr *uverbs.SendWR, n int) func() error {
	wr.RemoteAddr, wr.RKey = m.b.MR.Addr(), m.b.MR.RKey()
	wr.Flush = uverbs.Flush{Length: 4096, Type: uverbs.FlushGlobal, Level: uverbs.FlushRange}
	return nil
}
