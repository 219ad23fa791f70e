//go:build linux

package mlx5

import (
	"bytes"
	"encoding/binary"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/provider"
	"github.com/goverbs/verbs/providertest"
)

// choices makes random choices out of a fuzzer's bytes, and then regular ones.
type choices struct {
	data []byte
	n    uint64
}

func (c *choices) Uint64() uint64 {
	var b [8]byte
	n := copy(b[:], c.data)
	c.data = c.data[n:]
	c.n += 1<<63/5 + 1
	return binary.NativeEndian.Uint64(b[:]) ^ c.n
}

// addRandom adds inputs that make ordinary runs of a fuzz test try most of what there is.
func addRandom(f *testing.F) {
	for seed := range byte(16) {
		var b [16 << 10]byte
		rand.NewChaCha8([32]byte{seed}).Read(b[:])
		f.Add(b[:])
	}
}

// decoded is what the device reads out of a request.
type decoded struct {
	opcode, flags       uint8
	imm                 uint32
	av                  []byte
	addr, swap, compare uint64
	key                 uint32
	sgl                 []verbs.SGE
	inline              []byte
	bind                verbs.MWBind // of UMR, also one that invalidates
}

// decodeRequest reads a request by the layouts of qp.h, on its own, and returns how many blocks it
// takes.
func decodeRequest(t *testing.T, b []byte, typ verbs.QPType, index uint16, num uint32) (d decoded, blocks uint32) {
	t.Helper()
	if be.Uint16(b[1:]) != index || be.Uint32(b[4:])>>8 != num || b[0] != 0 || b[7]&^0x3f != 0 || !bytes.Equal(b[8:11], make([]byte, 3)) {
		t.Fatalf("control segment %x of request %d", b[:16], index)
	}
	size := int(b[7]) * 16
	d = decoded{opcode: b[3], flags: b[11], imm: be.Uint32(b[12:])}
	rest := b[16:size]
	take := func(n int) []byte {
		part := rest[:n] // panics if the request is shorter
		rest = rest[n:]
		return part
	}
	if typ == verbs.UD {
		d.av = take(48)
	}
	switch d.opcode {
	case 0x08, 0x09, 0x10, 0x11, 0x12:
		p := take(16)
		d.addr, d.key = be.Uint64(p), be.Uint32(p[8:])
	}
	if d.opcode == 0x11 || d.opcode == 0x12 {
		p := take(16)
		d.swap, d.compare = be.Uint64(p), be.Uint64(p[8:])
	}
	if d.opcode == 0x25 {
		d.bind = decodeUMR(t, take(48), take(64), &rest)
		if d.bind.Length > 0 && d.bind.Type == verbs.MWType2 && be.Uint32(b[64+4:])>>8 != num {
			t.Fatalf("window of a QP other than %d: %x", num, b[64:128])
		}
	}
	for len(rest) > 0 {
		n := be.Uint32(rest)
		if n>>31 == 0 {
			p := take(16)
			d.sgl = append(d.sgl, verbs.SGE{Length: n, LKey: be.Uint32(p[4:]), Addr: be.Uint64(p[8:])})
			continue
		}
		n &^= 1 << 31
		d.inline = slices.Clone(rest[4:][:n])
		if len(rest) != int(4+n+15)&^15 {
			t.Fatalf("%d bytes inline, and %d up to the end of the request", n, len(rest))
		}
		rest = nil
	}
	return d, uint32(size+63) / 64
}

// decodeUMR reads what is behind the control segment of a UMR request. Of keys only the last byte
// is there.
func decodeUMR(t *testing.T, c, key []byte, list *[]byte) (b verbs.MWBind) {
	t.Helper()
	b = verbs.MWBind{Type: verbs.MWType1, NewRKey: uint32(key[7])}
	flags, mask := byte(0x90), uint64(1<<29|1<<13)
	if be.Uint64(c[8:])&(1<<14) != 0 {
		b.Type = verbs.MWType2
		mask |= 1 << 14
	}
	octowords := be.Uint16(c[4:])
	switch {
	case octowords == 4:
		mask |= 0x3c0041
		flags |= byte(b.Type-1) << 5
		klm := (*list)[:64]
		*list = (*list)[64:]
		b.Length, b.LKey, b.Addr = be.Uint64(key[24:]), be.Uint32(klm[4:]), be.Uint64(klm[8:])
		for bit, a := range []verbs.Access{verbs.AccessLocalWrite, verbs.AccessRemoteRead, verbs.AccessRemoteWrite, verbs.AccessRemoteAtomic} {
			if key[2]>>(3+bit)&1 != 0 {
				b.Access |= a
			}
		}
		if start := be.Uint64(key[16:]); start == 0 {
			b.Access |= verbs.AccessZeroBased
		} else if start != b.Addr {
			t.Fatalf("window from %#x on of memory at %#x", start, b.Addr)
		}
		if uint64(be.Uint32(klm)) != b.Length || !bytes.Equal(klm[16:], make([]byte, 48)) || key[0] != 0 || key[2]&^0x78 != 0 {
			t.Fatalf("list %x of key %x", klm, key)
		}
	case octowords == 0 && key[0] == 1<<6 && bytes.Equal(key[16:32], make([]byte, 16)):
		flags |= byte(b.Type-1) << 3
	default:
		t.Fatalf("%d octowords of key %x", octowords, key)
	}
	if c[0] != flags || be.Uint64(c[8:]) != mask || c[1]|c[2]|c[3]|c[6]|c[7]|key[1]|key[3] != 0 || !bytes.Equal(c[16:], make([]byte, 32)) ||
		!bytes.Equal(key[8:16], make([]byte, 8)) || !bytes.Equal(key[32:], make([]byte, 32)) ||
		(octowords == 0 || b.Type == verbs.MWType1) && be.Uint32(key[4:])>>8 != 0xffffff {
		t.Fatalf("UMR control segment %x and key %x", c, key)
	}
	return b
}

// FuzzSendRequests posts requests and decodes them again, at every place of a queue.
func FuzzSendRequests(f *testing.F) {
	f.Add([]byte{})
	f.Add([]byte("requests of all kinds, with and without data inline"))
	f.Add(bytes.Repeat([]byte{0xff, 0x40, 7}, 100))
	addRandom(f)
	f.Fuzz(func(t *testing.T, data []byte) {
		x := &comparison{Comparison: &providertest.Comparison{Rand: rand.New(&choices{data: data})}, fake: newFake(t, Driver{}), signaled: 5}
		r := x.Rand
		x.typ = []verbs.QPType{verbs.RC, verbs.UC, verbs.UD}[r.IntN(3)]
		x.cap = verbs.QPCap{MaxSendWR: 1 + r.IntN(20), MaxSendSGE: 1 + r.IntN(12), MaxInline: r.IntN(400)}
		x.data = make([]byte, 1024)
		for i := range x.data {
			x.data[i] = byte(r.Uint32())
		}
		a := x.fake.ah(t, new(addressHandle))
		a.setInfiniBand(&verbs.AddressVector{DLID: uint16(r.Uint32()), SL: uint8(r.IntN(16)), Global: r.IntN(2) == 0, FlowLabel: r.Uint32()})
		x.handles = []handle{{a, 0}}
		cq := x.fake.cq(t, 64)
		p := x.fake.qp(t, x.typ, cq, x.cap, nil)
		q, behindUMR := p.send, false
		for range 100 {
			w, _ := x.request()
			args := provider.Args(&w)
			first := q.put
			list := slices.Repeat([]verbs.SendWR{w}, 1+r.IntN(min(q.Cap(), 2))) // a single one is encoded apart
			if n, err := q.Post(list); n != len(list) || err != nil {
				t.Fatalf("%+v: %v", w, err)
			}
			d, blocks := decodeRequest(t, q.blocks(first, 16), x.typ, uint16(first), p.num)
			if len(list) > 1 {
				first += blocks
				d, _ = decodeRequest(t, q.blocks(first, 16), x.typ, uint16(first), p.num)
				behindUMR = isUMR(&w, x.typ)
			}
			if q.put != first+blocks {
				t.Fatalf("%d blocks, and the next begins behind %d", blocks, q.put-first)
			}
			want := decoded{opcode: operations[w.Opcode].opcode, inline: slices.Concat(append([][]byte{w.Inline}, args.InlineList...)...)}
			for _, s := range w.SGL {
				if s.Length > 0 {
					want.sgl = append(want.sgl, s)
				}
			}
			for flag, bit := range map[verbs.SendFlags]uint8{verbs.SendSignaled: 0x08, verbs.SendSolicited: 0x02, verbs.SendFence: 0x80} {
				if w.Flags&flag != 0 {
					want.flags |= bit
				}
			}
			if behindUMR && want.flags&0x80 == 0 {
				want.flags |= 0x20
			}
			behindUMR = false
			switch w.Opcode {
			case verbs.OpBindMW, verbs.OpLocalInv:
				behindUMR, want.opcode, want.imm, want.bind = true, 0x25, w.RKey, verbs.MWBind{Type: verbs.MWType2}
				if args.Bind != nil {
					want.imm, want.bind = args.Bind.RKey, *args.Bind
					if want.bind.Type == 0 {
						want.bind.Type = verbs.MWType2
					}
					want.bind.NewRKey &= 0xff
					want.bind.RKey, want.bind.Access = 0, want.bind.Access&(verbs.AccessAll|verbs.AccessZeroBased)
				}
				if want.bind.Length == 0 {
					want.bind.LKey, want.bind.Addr, want.bind.Access = 0, 0, 0
				}
			case verbs.OpSendImm, verbs.OpRDMAWriteImm:
				want.imm = w.Imm
			case verbs.OpSendInv:
				want.imm = w.RKey
			case verbs.OpCompareSwap:
				want.swap, want.compare = args.Swap, args.CompareAdd
			case verbs.OpFetchAdd:
				want.swap, want.compare = args.CompareAdd, d.compare // which is not read
			}
			if operations[w.Opcode].remote {
				want.addr, want.key = w.RemoteAddr, w.RKey
			}
			if x.typ == verbs.UD {
				want.av = slices.Clone(a.av[:])
				be.PutUint32(want.av, w.To.QKey)
				be.PutUint32(want.av[8:], w.To.QPNum|1<<31)
			}
			if d.opcode != want.opcode || d.flags != want.flags || d.imm != want.imm || !bytes.Equal(d.av, want.av) || d.addr != want.addr || d.key != want.key ||
				d.swap != want.swap || d.bind != want.bind || d.compare != want.compare || !slices.Equal(d.sgl, want.sgl) || !bytes.Equal(d.inline, want.inline) {
				t.Fatalf("%+v was posted as\n%+v, want\n%+v", w, d, want)
			}
			cq.put(completion(p, uint16(first)), cqeRequest)
			if wcs := cq.poll(); len(wcs) != 1 || wcs[0].ID != w.ID {
				t.Fatalf("%+v of request %d", wcs, w.ID)
			}
		}
	})
}
