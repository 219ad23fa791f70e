//go:build linux

package mlx5_test

import (
	"bytes"
	"encoding/binary"
	"testing"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/internal/labtest"
	"github.com/goverbs/verbs/rdmatest"
	"github.com/goverbs/verbs/uverbs"
)

// windowPair is a pair whose side b binds windows for a.
type windowPair struct {
	t    *testing.T
	a, b *rdmatest.Endpoint
}

func newWindowPair(t *testing.T, typ verbs.QPType) *windowPair {
	t.Helper()
	a, b := labtest.NewPair(t, labtest.MLX5, rdmatest.PairOptions{
		Type: typ, All: true, Access: verbs.AccessAll | verbs.AccessMWBind, RC: uverbs.ConnectOptions{Access: verbs.AccessAll},
	})
	return &windowPair{t: t, a: a, b: b}
}

func (p *windowPair) alloc(typ verbs.MWType) *uverbs.MW {
	p.t.Helper()
	return labtest.Made(p.b.PD.AllocMW(typ))(p.t)
}

// post posts a request to a side, and returns its completion.
func (p *windowPair) post(s *rdmatest.Endpoint, wr verbs.SendWR) verbs.WC {
	p.t.Helper()
	wr.ID = 77
	if _, err := s.QP.PostSend(wr); err != nil {
		p.t.Fatal(err)
	}
	wc := poll(p.t, s.SendCQ)
	if wc.ID != 77 {
		p.t.Fatalf("%+v", wc)
	}
	return wc
}

// bind binds a window to 100 bytes of b's memory, and checks the completion.
func (p *windowPair) bind(mw *uverbs.MW, off int, want verbs.WCStatus) (key uint32) {
	p.t.Helper()
	old := mw.RKey()
	key, err := p.b.QP.BindMW(mw, uverbs.BindOptions{ID: 5, MR: p.b.MR, Offset: off, Length: 100, Access: verbs.AccessRemoteWrite})
	if err != nil {
		p.t.Fatal(err)
	}
	wc := poll(p.t, p.b.SendCQ)
	if wc.Status != want || wc.ID != 5 || want == verbs.WCSuccess && wc.Opcode != verbs.WCBindMW || key != verbs.NextRKey(old) {
		p.t.Fatalf("key %#x for %#x, %+v, want %v", key, old, wc, want)
	}
	return key
}

// write writes 10 bytes to b's memory with a key, and checks that they arrive, or how that fails.
func (p *windowPair) write(key uint32, off int, want verbs.WCStatus) {
	p.t.Helper()
	data, to := p.a.MR.Bytes()[:10], p.b.MR.Bytes()[off:off+10]
	binary.BigEndian.PutUint64(data, binary.BigEndian.Uint64(data)+0x0101010101010101)
	before := bytes.Clone(to)
	wc := p.post(p.a, verbs.SendWR{Opcode: verbs.OpRDMAWrite, SGL: []verbs.SGE{p.a.MR.SGE(0, 10)}, RemoteAddr: p.b.MR.Addr() + uint64(off), RKey: key})
	switch {
	case wc.Status != want:
		p.t.Fatalf("WRITE to %d with key %#x: %v, want %v", off, key, wc.Status, want)
	case want == verbs.WCSuccess && !bytes.Equal(to, data), want != verbs.WCSuccess && !bytes.Equal(to, before):
		p.t.Fatalf("WRITE to %d with key %#x: %v, and the memory is %x", off, key, wc.Status, to)
	}
}

// invalidate posts LOCAL_INV.
func (p *windowPair) invalidate(key uint32, want verbs.WCStatus) {
	p.t.Helper()
	if wc := p.post(p.b, verbs.SendWR{Opcode: verbs.OpLocalInv, RKey: key}); wc.Status != want || want == verbs.WCSuccess && wc.Opcode != verbs.WCLocalInv {
		p.t.Fatalf("LOCAL_INV of %#x: %+v, want %v", key, wc, want)
	}
}

// TestWindows binds windows of both types, lets the peer write by them, and revokes them in each
// way.
func TestWindows(t *testing.T) {
	const ok, denied, failed = verbs.WCSuccess, verbs.WCRemAccessErr, verbs.WCMWBindErr
	kinds(t, func(t *testing.T) {
		for name, test := range map[string]func(p *windowPair){
			"type 1, bound again": func(p *windowPair) {
				mw := p.alloc(verbs.MWType1)
				old := p.bind(mw, 1000, ok)
				p.write(old, 1000, ok)
				p.write(old, 1090, ok)
				p.write(p.bind(mw, 2000, ok), 2000, ok)
				p.write(old, 1000, denied)
			},
			"type 1, unbound": func(p *windowPair) {
				mw := p.alloc(verbs.MWType1)
				p.write(p.bind(mw, 1000, ok), 1000, ok)
				key := labtest.Must(p.b.QP.BindMW(mw, uverbs.BindOptions{}))(p.t)
				if wc := poll(p.t, p.b.SendCQ); wc.Status != ok || wc.Opcode != verbs.WCBindMW {
					p.t.Fatalf("%+v", wc)
				}
				p.write(key, 1000, denied)
			},
			"type 1, closed": func(p *windowPair) {
				mw := p.alloc(verbs.MWType1)
				key := p.bind(mw, 1000, ok)
				p.write(key, 1000, ok)
				labtest.Check(p.t, mw.Close())
				p.write(key, 1000, denied)
			},
			"beyond its end":   func(p *windowPair) { p.write(p.bind(p.alloc(verbs.MWType2), 1000, ok), 1091, denied) },
			"before its start": func(p *windowPair) { p.write(p.bind(p.alloc(verbs.MWType2), 1000, ok), 999, denied) },
			"without the right": func(p *windowPair) {
				key := p.bind(p.alloc(verbs.MWType2), 1000, ok)
				read := verbs.SendWR{Opcode: verbs.OpRDMARead, SGL: []verbs.SGE{p.a.MR.SGE(0, 10)}, RemoteAddr: p.b.MR.Addr() + 1000, RKey: key}
				if wc := p.post(p.a, read); wc.Status != denied {
					p.t.Fatalf("READ by a window for WRITEs: %v", wc.Status)
				}
			},
			"from 0 on": func(p *windowPair) {
				mw := p.alloc(verbs.MWType2)
				b := verbs.MWBind{RKey: mw.RKey(), NewRKey: verbs.NextRKey(mw.RKey()), LKey: p.b.MR.LKey(), Addr: p.b.MR.Addr() + 1000, Length: 100, Access: verbs.AccessRemoteWrite | verbs.AccessZeroBased}
				if wc := p.post(p.b, verbs.SendWR{Opcode: verbs.OpBindMW, Args: &verbs.SendArgs{Bind: &b}}); wc.Status != ok {
					p.t.Fatal(wc.Status)
				}
				copy(p.a.MR.Bytes(), "zero-based")
				wc := p.post(p.a, verbs.SendWR{Opcode: verbs.OpRDMAWrite, SGL: []verbs.SGE{p.a.MR.SGE(0, 10)}, RemoteAddr: 50, RKey: b.NewRKey})
				if got := p.b.MR.Bytes()[1050:1060]; wc.Status != ok || string(got) != "zero-based" {
					p.t.Fatalf("%v, %q", wc.Status, got)
				}
			},
			"type 2, LOCAL_INV": func(p *windowPair) {
				mw := p.alloc(verbs.MWType2)
				for i := range 300 {
					key := p.bind(mw, 10*i, ok)
					p.write(key, 10*i, ok)
					p.invalidate(key, ok)
				}
				p.write(mw.RKey(), 2990, denied)
			},
			"type 2, SEND_WITH_INV": func(p *windowPair) {
				mw := p.alloc(verbs.MWType2)
				for i := range 300 {
					key := p.bind(mw, 10*i, ok)
					p.write(key, 10*i, ok)
					if _, err := p.b.PostRecv(verbs.RecvWR{ID: 9}); err != nil {
						p.t.Fatal(err)
					}
					if wc := p.post(p.a, verbs.SendWR{Opcode: verbs.OpSendInv, RKey: key}); wc.Status != ok {
						p.t.Fatal(wc.Status)
					}
					if wc := poll(p.t, p.b.RecvCQ); wc.ID != 9 || wc.Status != ok || wc.Flags&verbs.WCWithInv == 0 || wc.InvalidatedRKey() != key {
						p.t.Fatalf("%+v, want that of key %#x", wc, key)
					}
				}
				p.write(mw.RKey(), 2990, denied)
			},
			"type 2, bound while it is": func(p *windowPair) {
				mw := p.alloc(verbs.MWType2)
				p.bind(mw, 0, ok)
				p.bind(mw, 0, failed)
			},
			"type 2, of another QP": func(p *windowPair) {
				key, other := p.bind(p.alloc(verbs.MWType2), 1000, ok), newWindowPair(p.t, verbs.RC)
				other.invalidate(key, failed)
				p.write(key, 1000, ok)
			},
			"window that is not bound": func(p *windowPair) { p.invalidate(p.alloc(verbs.MWType2).RKey(), failed) },
			"key of a region":          func(p *windowPair) { p.invalidate(p.b.MR.RKey(), failed) },
			"SEND_WITH_INV of a region": func(p *windowPair) {
				if _, err := p.b.PostRecv(verbs.RecvWR{}); err != nil {
					p.t.Fatal(err)
				}
				p.post(p.a, verbs.SendWR{Opcode: verbs.OpSendInv, RKey: p.b.MR.RKey()})
				if wc := poll(p.t, p.b.RecvCQ); wc.Status != verbs.WCRemInvReqErr {
					p.t.Fatalf("%+v: the key of a region has been invalidated", wc)
				}
			},
			"window without a region": func(p *windowPair) {
				mw := p.alloc(verbs.MWType2)
				key := p.bind(mw, 1000, ok)
				labtest.Check(p.t, p.b.MR.Close())
				wc := p.post(p.a, verbs.SendWR{Opcode: verbs.OpRDMAWrite, SGL: []verbs.SGE{p.a.MR.SGE(0, 10)}, RemoteAddr: 0, RKey: key})
				if wc.Status != denied {
					p.t.Fatal(wc.Status)
				}
			},
		} {
			t.Run(name, func(t *testing.T) { test(newWindowPair(t, verbs.RC)) })
		}
		t.Run("UC", func(t *testing.T) {
			p := newWindowPair(t, verbs.UC)
			for _, typ := range []verbs.MWType{verbs.MWType1, verbs.MWType2} {
				mw := p.alloc(typ)
				key := p.bind(mw, 1000, ok)
				copy(p.a.MR.Bytes(), "by window!")
				clear(p.b.MR.Bytes())
				p.post(p.a, verbs.SendWR{Opcode: verbs.OpRDMAWrite, SGL: []verbs.SGE{p.a.MR.SGE(0, 10)}, RemoteAddr: p.b.MR.Addr() + 1000, RKey: key})
				labtest.Until(t, "data", func() bool { return string(p.b.MR.Bytes()[1000:1010]) == "by window!" })
				if typ == verbs.MWType2 {
					p.invalidate(key, ok)
				}
			}
		})
		t.Run("in lists", func(t *testing.T) { listsOfWindows(newWindowPair(t, verbs.RC)) })
	})
}

// listsOfWindows posts lists that bind and invalidate a window and send a its last key right
// behind, by which a writes.
func listsOfWindows(p *windowPair) {
	t, mw := p.t, p.alloc(verbs.MWType2)
	key, bound := mw.RKey(), false
	for i := range 100 {
		var wrs []verbs.SendWR
		for range 1 + i%30 {
			if bound {
				wrs = append(wrs, verbs.SendWR{Opcode: verbs.OpLocalInv, RKey: key})
			} else {
				next := verbs.NextRKey(key)
				wrs = append(wrs, verbs.SendWR{Opcode: verbs.OpBindMW, Args: &verbs.SendArgs{Bind: &verbs.MWBind{
					RKey: key, NewRKey: next, LKey: p.b.MR.LKey(), Addr: p.b.MR.Addr() + uint64(10*i), Length: 10, Access: verbs.AccessRemoteWrite,
				}}})
				key = next
			}
			bound = !bound
		}
		wrs = append(wrs, verbs.SendWR{Opcode: verbs.OpSend, Inline: binary.BigEndian.AppendUint32(nil, key)})
		if _, err := p.a.PostRecv(verbs.RecvWR{SGL: []verbs.SGE{p.a.MR.SGE(100, 4)}}); err != nil {
			t.Fatal(err)
		}
		if _, err := p.b.QP.PostSend(wrs...); err != nil {
			t.Fatal(err)
		}
		if wc := poll(t, p.a.RecvCQ); wc.Err() != nil {
			t.Fatal(wc.Err())
		}
		if bound {
			p.write(binary.BigEndian.Uint32(p.a.MR.Bytes()[100:]), 10*i, verbs.WCSuccess)
		}
		for range wrs {
			if wc := poll(t, p.b.SendCQ); wc.Err() != nil {
				t.Fatal(wc.Err())
			}
		}
	}
}
