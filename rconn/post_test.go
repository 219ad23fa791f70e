//go:build linux

package rconn

import (
	"bytes"
	"encoding/binary"
	"errors"
	"net"
	"runtime/debug"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/abi"
	"github.com/goverbs/verbs/cm"
	"github.com/goverbs/verbs/internal/labtest"
	"github.com/goverbs/verbs/uverbs"
)

// testConns is a connection of a device with itself: b has posted receives of 100 bytes
// into inbox, with IDs from 0, and advertised store to a.
type testConns struct {
	a, b         *Conn
	inbox, store *LocalRegion
	remote       RemoteRegion // store
	mine         *LocalRegion // of a
}

func newTestConns(t *testing.T, device string, access verbs.Access, receives int) *testConns {
	t.Helper()
	p := &testConns{}
	p.a, p.b = newPair(t, device, Options{Adverts: 1}, Options{Setup: func(c *Conn) (err error) {
		p.inbox, err = c.Alloc(100*receives+1, LocalWrite)
		for i := 0; err == nil && i < receives; i++ {
			err = c.PostRecv(uint64(i), p.inbox.Span(100*i, 100))
		}
		return err
	}})
	p.store, p.remote = advertise(t, p.b, p.a, 4096, access)
	p.mine = labtest.Must(p.a.Alloc(4096, LocalWrite))(t)
	return p
}

// rights returns every right that a device can grant, and its capabilities.
func rights(t *testing.T, device string) (access verbs.Access, caps uint64) {
	t.Helper()
	access, caps = ReadWrite, labtest.Must(labtest.OpenDevice(t, device).QueryDevice())(t).CapFlags
	if labtest.Has(t, device, uverbs.FeatureAtomics) {
		access |= RemoteAtomic
	}
	if labtest.Has(t, device, uverbs.FeatureMWType2) {
		access |= verbs.AccessMWBind
	}
	if caps&abi.IB_UVERBS_DEVICE_FLUSH_GLOBAL != 0 {
		access |= verbs.AccessFlushGlobal
	}
	return access, caps
}

// TestPost posts every operation: it completes and has its effect,
// or the device lacks it and the error reports that.
func TestPost(t *testing.T) {
	labtest.RequireBoth(t)
	labtest.Each(t, func(t *testing.T, device string) {
		access, caps := rights(t, device)
		p := newTestConns(t, device, access, 4)
		imms, atomics := labtest.Has(t, device, uverbs.FeatureImmediates), labtest.Has(t, device, uverbs.FeatureAtomics)
		word := func(off int) uint64 { return binary.NativeEndian.Uint64(p.store.Bytes()[off:]) }
		binary.NativeEndian.PutUint64(p.store.Bytes()[8:], 40)
		copy(p.store.Bytes()[100:], "to be read")
		copy(p.mine.Bytes(), "some bytes")
		data, result := p.mine.Span(0, 10), p.mine.Span(1000, 8)
		receives := 0
		received := func(n int, op verbs.WCOpcode, imm uint32) {
			t.Helper()
			wc := await(t, p.b, Recvs, 1)[0]
			if wc.ID != uint64(receives) || wc.Opcode != op || int(wc.ByteLen) != n || imm != 0 && (wc.Flags&verbs.WCWithImm == 0 || wc.Imm() != imm) {
				t.Errorf("receive %d: %+v, immediate %#x", receives, wc, wc.Imm())
			}
			receives++
		}
		for _, c := range []struct {
			wr    verbs.SendWR
			to    *Target
			spans []Span
			has   bool
			done  verbs.WCOpcode
			check func()
		}{
			{verbs.SendWR{Opcode: verbs.OpSend}, nil, []Span{data}, true, verbs.WCSend, func() {
				received(10, verbs.WCRecv, 0)
			}},
			{verbs.SendWR{Opcode: verbs.OpSendImm, Imm: 0xcafe0001}, nil, []Span{data}, imms, verbs.WCSend, func() {
				received(10, verbs.WCRecv, 0xcafe0001)
			}},
			{verbs.SendWR{Opcode: verbs.OpSend, Args: &verbs.SendArgs{InlineList: [][]byte{[]byte("in"), []byte("line")}}}, nil, nil, true, verbs.WCSend, func() {
				received(6, verbs.WCRecv, 0)
				if got := p.inbox.Bytes()[100*(receives-1):][:6]; string(got) != "inline" {
					t.Errorf("%q came", got)
				}
			}},
			{verbs.SendWR{Opcode: verbs.OpRDMAWrite}, new(p.remote.At(200)), []Span{data}, true, verbs.WCRDMAWrite, nil},
			{verbs.SendWR{Opcode: verbs.OpRDMAWriteImm, Imm: 7}, new(p.remote.At(300)), []Span{data, data}, imms, verbs.WCRDMAWrite, func() {
				received(20, verbs.WCRecvRDMAImm, 7)
				if got := p.store.Bytes()[300:320]; string(got) != "some bytessome bytes" {
					t.Errorf("%q was written", got)
				}
			}},
			{verbs.SendWR{Opcode: verbs.OpRDMARead}, new(p.remote.At(100)), []Span{p.mine.Span(50, 10)}, true, verbs.WCRDMARead, func() {
				if got := p.mine.Bytes()[50:60]; string(got) != "to be read" {
					t.Errorf("%q was read", got)
				}
			}},
			{verbs.SendWR{Opcode: verbs.OpFetchAdd, Args: &verbs.SendArgs{CompareAdd: 2}}, new(p.remote.At(8)), []Span{result}, atomics, verbs.WCFetchAdd, func() {
				if was := binary.NativeEndian.Uint64(result.bytes()); was != 40 || word(8) != 42 {
					t.Errorf("%d became %d", was, word(8))
				}
			}},
			{verbs.SendWR{Opcode: verbs.OpCompareSwap, Args: &verbs.SendArgs{CompareAdd: 42, Swap: 50}}, new(p.remote.At(8)), []Span{result}, atomics, verbs.WCCompareSwap, func() {
				if was := binary.NativeEndian.Uint64(result.bytes()); was != 42 || word(8) != 50 {
					t.Errorf("%d became %d", was, word(8))
				}
			}},
			{verbs.SendWR{Opcode: verbs.OpAtomicWrite, Inline: []byte("8 bytes!")}, new(p.remote.At(16)), nil, caps&abi.IB_UVERBS_DEVICE_ATOMIC_WRITE != 0, verbs.WCAtomicWrite, func() {
				if got := p.store.Bytes()[16:24]; string(got) != "8 bytes!" {
					t.Errorf("%q was written", got)
				}
			}},
			{verbs.SendWR{Opcode: verbs.OpFlush, Args: &verbs.SendArgs{Flush: verbs.Flush{Length: 4096, Type: verbs.FlushGlobal}}}, new(p.remote.At(0)), nil, caps&abi.IB_UVERBS_DEVICE_FLUSH_GLOBAL != 0, verbs.WCFlush, nil},
		} {
			c.wr.ID, c.wr.Flags = 1000+uint64(c.wr.Opcode), verbs.SendSignaled
			var err error
			if c.to == nil {
				err = p.a.Post(Op{SendWR: c.wr, Spans: c.spans})
			} else {
				err = p.a.Post(Op{SendWR: c.wr, At: *c.to, Spans: c.spans})
			}
			if !c.has {
				if c.to != nil && c.wr.Opcode != verbs.OpRDMAWriteImm && errors.Is(err, ErrAccess) {
					continue // the device cannot grant the right either
				}
				if !errors.Is(err, errors.ErrUnsupported) || !strings.Contains(err.Error(), c.wr.Opcode.String()) {
					t.Errorf("%v, which the device lacks: %v", c.wr.Opcode, err)
				}
				continue
			}
			if err != nil {
				t.Errorf("%v: %v", c.wr.Opcode, err)
				continue
			}
			if wc := await(t, p.a, Sends, 1)[0]; wc.ID != c.wr.ID || wc.Opcode != c.done {
				t.Errorf("%v: completion %+v", c.wr.Opcode, wc)
			}
			if c.check != nil {
				c.check()
			}
		}
		check(t, p.a.AwaitDelivery(testContext(t), p.remote))
		if got := p.store.Bytes()[200:210]; string(got) != "some bytes" {
			t.Errorf("%q was written", got)
		}
		if err := p.mine.Close(); err != nil {
			t.Errorf("a region that no request uses any more: %v", err)
		}
	})
}

// TestPostMethods tests the methods for the common operations.
func TestPostMethods(t *testing.T) {
	labtest.Each(t, func(t *testing.T, device string) {
		access, _ := rights(t, device)
		p := newTestConns(t, device, access, 3)
		a := p.a
		copy(p.mine.Bytes(), "0123456789")
		check(t, a.Post(SendInline([]byte("inline")).With(1, verbs.SendSignaled)))
		check(t, a.Post(WriteInline(p.remote.At(10), []byte("written inline")).With(2, verbs.SendSignaled)))
		check(t, a.AwaitDelivery(testContext(t), p.remote))
		for i, wc := range await(t, a, Sends, 2) {
			if wc.ID != uint64(i+1) {
				t.Errorf("completion %+v", wc)
			}
		}
		if wc := await(t, p.b, Recvs, 1)[0]; string(p.inbox.Bytes()[:wc.ByteLen]) != "inline" {
			t.Errorf("%q came", p.inbox.Bytes()[:wc.ByteLen])
		}
		if got := p.store.Bytes()[10:24]; string(got) != "written inline" {
			t.Errorf("%q was written", got)
		}
		if err := a.Post(SendInline(make([]byte, 1000)).With(3, 0)); !errors.Is(err, verbs.ErrInlineTooLong) {
			t.Errorf("1000 bytes of inline data: %v", err)
		}
		posts := []error{
			a.Post(SendImm(77, p.mine.Span(0, 10)).With(4, verbs.SendSignaled)),
			a.Post(WriteImm(78, p.remote.At(50), p.mine.Span(0, 10)).With(5, verbs.SendSignaled)),
		}
		if !labtest.Has(t, device, uverbs.FeatureImmediates) {
			for _, err := range posts {
				if !errors.Is(err, errors.ErrUnsupported) || !strings.Contains(err.Error(), "not all devices have immediates") {
					t.Errorf("an immediate: %v", err)
				}
			}
			return
		}
		labtest.Needs(t, device, uverbs.FeatureAtomics)
		result := p.mine.Span(64, 8)
		binary.NativeEndian.PutUint64(p.store.Bytes(), 1)
		for _, err := range append(posts, a.Post(FetchAdd(p.remote.At(0), 10, result).With(6, verbs.SendSignaled)), a.Post(CompareSwap(p.remote.At(0), 11, 99, result).With(7, verbs.SendSignaled))) {
			check(t, err)
		}
		for i, wc := range await(t, a, Sends, 4) {
			if wc.ID != uint64(i+4) {
				t.Errorf("completion %+v", wc)
			}
		}
		wcs := await(t, p.b, Recvs, 2)
		if wcs[0].Imm() != 77 || wcs[1].Imm() != 78 || wcs[1].Opcode != verbs.WCRecvRDMAImm || wcs[0].Flags&wcs[1].Flags&verbs.WCWithImm == 0 {
			t.Errorf("received %+v", wcs)
		}
		if was, is := binary.NativeEndian.Uint64(result.bytes()), binary.NativeEndian.Uint64(p.store.Bytes()); was != 11 || is != 99 {
			t.Errorf("%d became %d", was, is)
		}
	})
}

// TestPostRefused posts invalid requests: they fail, and the connection stays usable.
func TestPostRefused(t *testing.T) {
	labtest.Each(t, func(t *testing.T, device string) {
		access, _ := rights(t, device)
		p := newTestConns(t, device, access, 1)
		plain := labtest.Must(p.a.Alloc(100, RemoteRead))(t)
		data := p.mine.Span(0, 8)
		readable := p.remote
		readable.Access = verbs.AccessRemoteRead
		for name, c := range map[string]struct {
			err, want error
		}{
			"no opcode":             {p.a.Post(Op{SendWR: verbs.SendWR{}, Spans: []Span{data}}), verbs.ErrNoOpcode},
			"unknown opcode":        {p.a.Post(Op{SendWR: verbs.SendWR{Opcode: 99}, Spans: []Span{data}}), errors.ErrUnsupported},
			"SEND with a target":    {p.a.Post(Op{SendWR: verbs.SendWR{Opcode: verbs.OpSend}, At: p.remote.At(0), Spans: []Span{data}}), verbs.ErrRange},
			"spans and SGL":         {p.a.Post(Op{SendWR: verbs.SendWR{Opcode: verbs.OpSend, SGL: []verbs.SGE{p.mine.MR().SGE(0, 1)}}, Spans: []Span{data}}), verbs.ErrRange},
			"spans and inline":      {p.a.Post(Op{SendWR: verbs.SendWR{Opcode: verbs.OpSend, Inline: []byte("x")}, Spans: []Span{data}}), verbs.ErrInlineSGL},
			"READ inline":           {p.a.Post(Op{SendWR: verbs.SendWR{Opcode: verbs.OpRDMARead, Inline: []byte("x")}, At: p.remote.At(0)}), verbs.ErrInlineOp},
			"inline beyond":         {p.a.Post(WriteInline(p.remote.At(4090), []byte("1234567"))), verbs.ErrRange},
			"inline list beyond":    {p.a.Post(Op{SendWR: verbs.SendWR{Opcode: verbs.OpRDMAWrite, Args: &verbs.SendArgs{InlineList: [][]byte{[]byte("1234"), []byte("567")}}}, At: p.remote.At(4090)}), verbs.ErrRange},
			"WRITE of SGL beyond":   {p.a.Post(Op{SendWR: verbs.SendWR{Opcode: verbs.OpRDMAWrite, SGL: []verbs.SGE{p.mine.MR().SGE(0, 7)}}, At: p.remote.At(4090)}), verbs.ErrRange},
			"WRITE_IMM beyond":      {p.a.Post(WriteImm(1, p.remote.At(4090), data)), verbs.ErrRange},
			"WRITE_IMM to readable": {p.a.Post(WriteImm(1, readable.At(0), data)), ErrAccess},
			"atomic, not aligned":   {p.a.Post(FetchAdd(p.remote.At(4), 1, data)), verbs.ErrRange},
			"atomic to readable":    {p.a.Post(CompareSwap(readable.At(8), 1, 2, data)), ErrAccess},
			"atomic to read-only":   {p.a.Post(FetchAdd(p.remote.At(0), 1, plain.Span(0, 8))), ErrAccess},
			"flush beyond":          {p.a.Post(Op{SendWR: verbs.SendWR{Opcode: verbs.OpFlush, Args: &verbs.SendArgs{Flush: verbs.Flush{Length: 4096, Type: verbs.FlushGlobal}}}, At: p.remote.At(1)}), verbs.ErrRange},
			"flush to readable":     {p.a.Post(Op{SendWR: verbs.SendWR{Opcode: verbs.OpFlush, Args: &verbs.SendArgs{Flush: verbs.Flush{Length: 1, Type: verbs.FlushPersistent}}}, At: readable.At(0)}), ErrAccess},
		} {
			if !errors.Is(c.err, c.want) {
				t.Errorf("%s: %v, want %v", name, c.err, c.want)
			}
			if e, ok := errors.AsType[*verbs.Error](c.err); !ok || e.Op != "post" || e.Device != device {
				t.Errorf("%s: %#v", name, c.err)
			}
			if _, ok := errors.AsType[*verbs.PostError](c.err); ok {
				t.Errorf("%s: %v has the Conn's own numbers", name, c.err)
			}
		}
		check(t, p.a.Put(testContext(t), p.remote.At(0), []byte("lives on")))
		if s := p.a.Stats(); s.SendQueue.Failed != 0 || s.Sends.Requests != 0 || s.Others != 0 {
			t.Errorf("%+v", s)
		}
	})
}

// TestForeignRegionClosed posts with a region of a connection that shares the PD and has been closed: it is refused, and the
// connection stays usable.
func TestForeignRegionClosed(t *testing.T) {
	labtest.Each(t, func(t *testing.T, device string) {
		shared := Options{Options: cm.Options{SharePD: true}}
		a, _ := newPair(t, device, shared, Options{})
		b, peer := newPair(t, device, shared, Options{Setup: func(c *Conn) error {
			in, err := c.Alloc(100, LocalWrite)
			if err == nil {
				err = c.PostRecv(1, in.All())
			}
			return err
		}})
		region := labtest.Must(a.Alloc(100, ReadWrite))(t)
		check(t, a.Close())
		for name, err := range map[string]error{"Send": b.Post(Send(region.All())), "PostRecv": b.PostRecv(1, region.All())} {
			if !errors.Is(err, verbs.ErrClosed) {
				t.Errorf("%s: %v", name, err)
			}
		}
		check(t, b.Post(SendInline([]byte("hello"))))
		await(t, peer, Recvs, 1)
	})
}

// TestWindow grants a part of a region with a window, lets the peer use it, and
// invalidates it from this side and from the peer's.
func TestWindow(t *testing.T) {
	labtest.Each(t, func(t *testing.T, device string) {
		if !labtest.Has(t, device, uverbs.FeatureMWType2) {
			a, _ := newPair(t, device, Options{}, Options{})
			if _, err := a.AllocWindow(); !errors.Is(err, errors.ErrUnsupported) {
				t.Errorf("a window: %v", err)
			}
			return
		}
		// The peer, b, has only windows. a, the owner, receives its messages.
		a, b := newPair(t, device, Options{Setup: func(c *Conn) error {
			in, err := c.Alloc(100, LocalWrite)
			if err == nil {
				err = c.PostRecv(5, in.All())
			}
			return err
		}}, Options{Adverts: 3})
		region := labtest.Must(a.Alloc(4096, LocalWrite|verbs.AccessMWBind))(t)
		w := labtest.Must(a.AllocWindow())(t)
		grant := func(off int) RemoteRegion {
			t.Helper()
			check(t, a.Post(Bind(w, region.Span(off, 100), RemoteWrite).With(1, verbs.SendSignaled)))
			part := w.Region()
			part.Tag = uint32(off)
			check(t, a.Post(SendInline(labtest.Must(part.AppendAdvert(nil))(t)).With(2, verbs.SendSignaled)))
			for i, wc := range await(t, a, Sends, 2) {
				if wc.ID != uint64(i+1) || i == 0 && wc.Opcode != verbs.WCBindMW {
					t.Errorf("completion %+v", wc)
				}
			}
			got := labtest.Must(b.AwaitAdvert(testContext(t)))(t)
			if got != part || got.Len != 100 || got.Access != verbs.AccessRemoteWrite || got.Key == region.MR().RKey() {
				t.Errorf("granted %+v, of %+v", got, part)
			}
			return got
		}
		first := grant(1000)
		check(t, b.Put(testContext(t), first.At(90), []byte("by window!")))
		if got := region.Bytes()[1090:1100]; string(got) != "by window!" {
			t.Errorf("%q was written", got)
		}
		if device == labtest.MLX5 { // where closing the region would revoke the window
		} else if err := region.Close(); !errors.Is(err, unix.EINVAL) || !strings.Contains(err.Error(), "window") {
			t.Errorf("closing a region under a window: %v", err)
		}
		check(t, a.Post(Invalidate(first.Key).With(3, verbs.SendSignaled)))
		if wc := await(t, a, Sends, 1)[0]; wc.ID != 3 || wc.Opcode != verbs.WCLocalInv {
			t.Errorf("completion %+v", wc)
		}

		// The peer invalidates the second with a message, which reports it.
		second := grant(2000)
		if second.Key == first.Key {
			t.Error("the same key again")
		}
		check(t, b.Put(testContext(t), second.At(0), []byte("second")))
		check(t, b.Post(SendInv(second.Key).With(4, verbs.SendSignaled)))
		await(t, b, Sends, 1)
		if wc := await(t, a, Recvs, 1)[0]; wc.ID != 5 || wc.Flags&verbs.WCWithInv == 0 || wc.InvalidatedRKey() != second.Key {
			t.Errorf("receive %+v of key %#x", wc, wc.InvalidatedRKey())
		}

		closed := labtest.Must(a.AllocWindow())(t)
		check(t, closed.Close())
		third := grant(3000) // bound again, so it was invalidated
		for name, err := range map[string]error{
			"no access":      a.Post(Bind(w, region.Span(0, 1), 0)),
			"nothing":        a.Post(Bind(w, region.Span(0, 0), RemoteRead)),
			"beyond":         a.Post(Bind(w, region.Span(4096, 1), RemoteRead)),
			"no window":      a.Post(Bind(nil, region.Span(0, 1), RemoteRead)),
			"a foreign one":  b.Post(Bind(w, region.Span(0, 1), RemoteRead)),
			"closed":         a.Post(Bind(closed, region.Span(0, 1), RemoteRead)),
			"without MWBind": a.Post(Bind(w, labtest.Must(a.Alloc(1, ReadWrite))(t).All(), RemoteRead)),
			"read-only":      a.Post(Bind(w, labtest.Must(a.Alloc(1, verbs.AccessMWBind))(t).All(), RemoteWrite)),
		} {
			if closed := name == "closed"; errors.Is(err, verbs.ErrClosed) != closed || !closed && !errors.Is(err, verbs.ErrRange) && !errors.Is(err, ErrAccess) && !errors.Is(err, ErrForeign) {
				t.Errorf("binding to %s: %v", name, err)
			}
		}
		check(t, w.Close())
		check(t, w.Close())
		check(t, region.Close())
		if err := b.Put(testContext(t), third.At(0), []byte("too late")); !errors.Is(err, verbs.WCRemAccessErr) {
			t.Errorf("writing by a window that is closed: %v", err)
		}
		// Close of a Conn closes its windows, and no more can be made.
		other, _ := newPair(t, device, Options{}, Options{})
		left := labtest.Must(other.AllocWindow())(t)
		check(t, other.Close())
		check(t, left.Close())
		if _, err := other.AllocWindow(); !errors.Is(err, net.ErrClosed) {
			t.Errorf("a window of a closed Conn: %v", err)
		}
	})
}

// TestInvalidate invalidates a region's key on siw, from this side and from the peer's.
// Others refuse that: they only invalidate windows' keys.
func TestInvalidate(t *testing.T) {
	labtest.RequireBoth(t)
	labtest.Each(t, func(t *testing.T, device string) {
		labtest.Needs(t, device, uverbs.FeatureInvalidate)
		for _, local := range []bool{true, false} {
			p := newTestConns(t, device, ReadWrite, 2)
			invalidate := func() error { return p.a.Post(SendInv(p.remote.Key, p.mine.Span(0, 10)).With(1, verbs.SendSignaled)) }
			from := p.a
			if local {
				from, invalidate = p.b, func() error { return p.b.Post(Invalidate(p.remote.Key).With(1, verbs.SendSignaled)) }
			}
			// Another connection that shares the protection domain.
			c, d := newPair(t, device, Options{Adverts: 1}, Options{Options: cm.Options{PD: p.b.ep.PD}})
			check(t, d.Post(Advert(0, p.store.All())))
			shared := labtest.Must(c.AwaitAdvert(testContext(t)))(t)
			check(t, c.Put(testContext(t), shared.At(0), []byte("shared")))
			check(t, p.a.Put(testContext(t), p.remote.At(0), []byte("still valid")))
			check(t, invalidate())
			var wcs [1]verbs.WC
			check(t, from.Await(testContext(t), Sends, wcs[:]))
			if labtest.Driver(t, device) != "siw" {
				if local && wcs[0].Err() == nil {
					t.Error("the key of a region has been invalidated")
				}
				continue
			}
			check(t, wcs[0].Err())
			if !local {
				await(t, p.b, Recvs, 1)
			}
			if p.a.Put(testContext(t), p.remote.At(0), []byte("not any more")) == nil || c.Put(testContext(t), shared.At(0), []byte("nor here")) == nil {
				t.Error("an invalidated key can be used")
			}
		}
	})
}

// TestWriteImmAsAdvert lets a peer consume a receive for an advertisement with a WRITE
// that is longer than any advertisement.
func TestWriteImmAsAdvert(t *testing.T) {
	labtest.Require(t)
	a, b := newPair(t, labtest.RXE, Options{Adverts: 1}, Options{Adverts: 2})
	_, remote := advertise(t, b, a, 1<<20, ReadWrite)
	mine := labtest.Must(a.Alloc(1<<20, 0))(t)
	for _, n := range []int{1 << 20, 0} {
		check(t, a.Post(WriteImm(1, remote.At(0), mine.Span(0, n)).With(1, verbs.SendSignaled)))
		await(t, a, Sends, 1)
		_, err := b.AwaitAdvert(testContext(t))
		if bad, ok := errors.AsType[*AdvertError](err); !ok || !errors.Is(err, ErrAdvert) || bad.Message != nil {
			t.Errorf("a WRITE of %d bytes as an advertisement: %v", n, err)
		}
	}
	if s := b.Stats(); s.AdvertsInvalid != 2 || s.AdvertsReceived != 0 {
		t.Errorf("%+v", s)
	}
}

// TestEndpoint uses the layers below as Conn.Endpoint allows: other kinds of memory,
// requests made by hand, queries and changes of the QP.
func TestEndpoint(t *testing.T) {
	labtest.Each(t, func(t *testing.T, device string) {
		a, b := newPair(t, device, Options{Adverts: 1}, Options{Setup: func(c *Conn) error {
			in, err := c.Alloc(100, LocalWrite)
			if err == nil {
				err = c.PostRecv(1, in.All())
			}
			return err
		}})
		pd := b.Endpoint().PD
		mr := labtest.Must(pd.AllocMR(4096, ReadWrite, uverbs.MROptions{}))(t)
		theirs := NewRegion(pd, mr, ReadWrite)
		check(t, b.Post(Advert(3, theirs.Span(96, 4000))))
		remote := labtest.Must(a.AwaitAdvert(testContext(t)))(t)

		mem := []byte("memory registered by hand")
		own := labtest.Must(a.Endpoint().PD.RegisterMR(mem, LocalWrite, uverbs.MROptions{}))(t)
		check(t, a.Post(Op{SendWR: verbs.SendWR{ID: 10, Opcode: verbs.OpSend, Flags: verbs.SendSignaled, SGL: []verbs.SGE{own.SGE(0, 6), own.SGE(7, 4)}}}))
		check(t, a.Post(Op{SendWR: verbs.SendWR{ID: 11, Opcode: verbs.OpRDMAWrite, Flags: verbs.SendSignaled, SGL: []verbs.SGE{own.SGE(0, len(mem))}}, At: remote.At(4)}))
		check(t, a.Post(Op{SendWR: verbs.SendWR{ID: 12, Opcode: verbs.OpRDMAWrite, Flags: verbs.SendSignaled, RemoteAddr: remote.Addr + 50, RKey: remote.Key, Inline: []byte("by address")}}))
		for i, wc := range await(t, a, Sends, 3) {
			if wc.ID != uint64(10+i) {
				t.Errorf("completion %+v", wc)
			}
		}
		if wc := await(t, b, Recvs, 1)[0]; wc.ByteLen != 10 {
			t.Errorf("received %+v", wc)
		}
		check(t, a.AwaitDelivery(testContext(t), remote))
		if got := mr.Bytes(); !bytes.Equal(got[100:][:len(mem)], mem) || string(got[146:156]) != "by address" {
			t.Errorf("%q was written", got[96:160])
		}

		qp := a.Endpoint().QP
		attr, err := qp.Query()
		if err != nil || attr.State != verbs.StateRTS && (device == labtest.RXE || attr.State != verbs.StateReset) { // siw of Linux 6.1 does not return it
			t.Errorf("%v, %v", attr.State, err)
		}
		if device == labtest.RXE {
			check(t, qp.Modify(verbs.QPAttr{State: verbs.StateRTS, MinRNRTimer: 1}, verbs.MaskState|verbs.MaskMinRNRTimer))
		}
		if route := labtest.Must(a.Endpoint().ID().Route())(t); route.Remote != a.RemoteAddr().AddrPort {
			t.Errorf("route %+v", route)
		}
		check(t, a.Put(testContext(t), remote.At(0), []byte("still works")))
		if s := a.Stats(); s.SendQueue.Foreign+s.RecvQueue.Foreign != 0 {
			t.Errorf("%+v", s)
		}

		// A region in the PD is not the Conn's: Close fails and can be repeated.
		if err := a.Close(); !errors.Is(err, verbs.ErrInUse) {
			t.Errorf("closing under a region: %v", err)
		}
		if err := a.Post(Send()); !errors.Is(err, net.ErrClosed) {
			t.Errorf("posting after that: %v", err)
		}
		check(t, own.Close())
		for range 2 {
			check(t, a.Close())
		}
		check(t, theirs.Close())
	})
}

// TestInlineFault posts unmapped inline data, in a program that recovers from faults. The
// connection stays usable.
func TestInlineFault(t *testing.T) {
	labtest.Each(t, func(t *testing.T, device string) {
		p := newTestConns(t, device, ReadWrite, 1)
		region := labtest.Must(p.a.Alloc(4096, 0))(t)
		gone := region.Bytes()[:8]
		check(t, region.Close())
		func() {
			defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
			defer func() {
				if recover() == nil {
					t.Error("data that is gone was sent")
				}
			}()
			p.a.Post(SendInline(gone).With(1, 0))
		}()
		check(t, p.a.Post(SendInline([]byte("all well")).With(2, verbs.SendSignaled)))
		if wc := await(t, p.a, Sends, 1)[0]; wc.ID != 2 {
			t.Errorf("completion %+v", wc)
		}
		if wc := await(t, p.b, Recvs, 1)[0]; string(p.inbox.Bytes()[:wc.ByteLen]) != "all well" {
			t.Errorf("%q came", p.inbox.Bytes()[:wc.ByteLen])
		}
	})
}
