package roce

import (
	"bytes"
	"math/rand/v2"
	"net/netip"
	"reflect"
	"strings"
	"testing"
)

// FuzzPacket decodes any bytes. What is decoded is the same after encoding, and its ICRC is
// verified.
func FuzzPacket(f *testing.F) {
	r := rand.New(rand.NewPCG(1, 2))
	for _, op := range known() {
		f.Add(append(randomPacket(r, op, 21).Append(nil), 1, 2, 3, 4), uint16(op))
	}
	f.Add([]byte{4, 0x30, 0xff, 0xff, 16: 0}, uint16(0))
	p := randomPacket(r, UDSendOnly, MADSize)
	p.DestQP, p.Payload = GSIQP, must(AppendCM(nil, 1, &RTU{LocalCommID: 2, RemoteCommID: 3}))
	f.Add(append(p.Append(nil), 1, 2, 3, 4), uint16(0))
	flows := make([]Flow, 2)
	headers := make([]ip, 2)
	for i := range flows {
		headers[i] = randomIP(r, i == 0)
		flows[i] = headers[i].flow()
	}
	f.Fuzz(func(t *testing.T, b []byte, id uint16) {
		before := bytes.Clone(b)
		var p, q Packet
		err := p.Decode(b)
		for _, flow := range flows {
			flow.Verify(b, id)
			flow.VerifyUnknownID(b)
		}
		if s := p.String(); strings.Contains(s, "\n") {
			t.Error(s)
		}
		if err != nil {
			return
		}
		p.AETH.Syndrome.Credits()
		if len(b) < p.Len() || p.HeaderLen()+len(p.Payload)+int(p.Pad)+ICRCSize != len(b) {
			t.Fatalf("%v: lengths of %d bytes", &p, len(b))
		}
		again := p.AppendHeaders(nil)
		again = append(append(again, b[p.HeaderLen():len(b)-ICRCSize]...), 0, 0, 0, 0)
		if err := q.Decode(again); err != nil || !reflect.DeepEqual(p, q) {
			t.Fatalf("%v\n%+v\n%+v", err, p, q)
		}
		for i, flow := range flows {
			if len(b) > 60000 {
				break
			}
			flow.PutICRC(again, id)
			whole := headers[i].withID(id).datagram(again)
			if want := slowICRC(whole[:len(whole)-ICRCSize]); string(again[len(again)-ICRCSize:]) != string(want) {
				t.Fatalf("ICRC %x, not %x", again[len(again)-ICRCSize:], want)
			}
			if got, ok := flow.VerifyUnknownID(again); !ok || !flow.Verify(again, id) || flow.IPv4() && got != id {
				t.Fatalf("identification %#x: %#x, %v", id, got, ok)
			}
		}
		if !bytes.Equal(b, before) {
			t.Fatal("the packet was changed")
		}
	})
}

func (h ip) withID(id uint16) ip { h.id = id; return h }

// FuzzMAD decodes any bytes. What is decoded is the same after encoding.
func FuzzMAD(f *testing.F) {
	r := rand.New(rand.NewPCG(1, 2))
	for i := range cmLayout {
		f.Add(must(AppendCM(nil, r.Uint64(), randomMessage(r, i))))
	}
	f.Add(must(AppendCM(nil, 1, &REQ{PrivateData: (&CMAHeader{1, netip.IPv4Unspecified(), netip.IPv4Unspecified()}).Append(nil)})))
	f.Fuzz(func(t *testing.T, b []byte) {
		before := bytes.Clone(b)
		h, m, err := DecodeCM(b)
		if tid, ok := QuotedTID(b); ok != (len(b) >= 16) || ok && err != ErrMADLength && tid != h.TID {
			t.Fatalf("transaction %x, %v", tid, ok)
		}
		if err == ErrMADLength {
			if len(b) == MADSize {
				t.Fatal(err)
			}
			return
		}
		if again := h.Append(nil); len(again) != MADHeaderSize || !bytes.Equal(again[:18], b[:18]) {
			t.Fatalf("header %x, not %x", again, b[:MADHeaderSize])
		}
		if err != nil {
			return
		}
		again, err := AppendCM(nil, h.TID, m)
		if err != nil {
			t.Fatal(err)
		}
		_, n, err := DecodeCM(again)
		if err != nil || !reflect.DeepEqual(m, n) {
			t.Fatalf("%v\n%+v\n%+v", err, m, n)
		}
		if req, ok := m.(*REQ); ok {
			var c, d CMAHeader
			if c.Decode(req.PrivateData) == nil {
				if err := d.Decode(c.Append(nil)); err != nil || d.Src != c.Src.Unmap() && d.Src != c.Src {
					t.Fatalf("%v: %+v, %+v", err, c, d)
				}
			}
		}
		if !bytes.Equal(b, before) {
			t.Fatal("the datagram was changed")
		}
	})
}
