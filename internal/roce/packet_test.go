package roce

import (
	"encoding/hex"
	"errors"
	"math/rand/v2"
	"reflect"
	"strings"
	"testing"
)

// rxeOpcodes has the opcodes of rxe_opcode.c as it describes them: value, name, mask, and the
// size of the headers.
const rxeOpcodes = `
00 RC_SEND_FIRST                   12 PAYLOAD REQ RWR SEND START
01 RC_SEND_MIDDLE                  12 PAYLOAD REQ SEND MIDDLE
02 RC_SEND_LAST                    12 PAYLOAD REQ COMP SEND END
03 RC_SEND_LAST_WITH_IMMEDIATE     16 IMMDT PAYLOAD REQ COMP SEND END
04 RC_SEND_ONLY                    12 PAYLOAD REQ COMP RWR SEND START END
05 RC_SEND_ONLY_WITH_IMMEDIATE     16 IMMDT PAYLOAD REQ COMP RWR SEND START END
06 RC_RDMA_WRITE_FIRST             28 RETH PAYLOAD REQ WRITE START
07 RC_RDMA_WRITE_MIDDLE            12 PAYLOAD REQ WRITE MIDDLE
08 RC_RDMA_WRITE_LAST              12 PAYLOAD REQ WRITE END
09 RC_RDMA_WRITE_LAST_WITH_IMMEDIATE 16 IMMDT PAYLOAD REQ WRITE COMP RWR END
0a RC_RDMA_WRITE_ONLY              28 RETH PAYLOAD REQ WRITE START END
0b RC_RDMA_WRITE_ONLY_WITH_IMMEDIATE 32 RETH IMMDT PAYLOAD REQ WRITE COMP RWR START END
0c RC_RDMA_READ_REQUEST            28 RETH REQ READ START END
0d RC_RDMA_READ_RESPONSE_FIRST     16 AETH PAYLOAD ACK START
0e RC_RDMA_READ_RESPONSE_MIDDLE    12 PAYLOAD ACK MIDDLE
0f RC_RDMA_READ_RESPONSE_LAST      16 AETH PAYLOAD ACK END
10 RC_RDMA_READ_RESPONSE_ONLY      16 AETH PAYLOAD ACK START END
11 RC_ACKNOWLEDGE                  16 AETH ACK START END
12 RC_ATOMIC_ACKNOWLEDGE           24 AETH ATMACK ACK START END
13 RC_COMPARE_SWAP                 40 ATMETH REQ ATOMIC START END
14 RC_FETCH_ADD                    40 ATMETH REQ ATOMIC START END
16 RC_SEND_LAST_WITH_INVALIDATE    16 IETH PAYLOAD REQ COMP SEND END
17 RC_SEND_ONLY_WITH_INVALIDATE    16 IETH PAYLOAD REQ COMP RWR SEND END START
1c RC_FLUSH                        32 FETH RETH FLUSH START END REQ
1d RC_ATOMIC_WRITE                 28 RETH PAYLOAD REQ ATOMIC_WRITE START END
20 UC_SEND_FIRST                   12 PAYLOAD REQ RWR SEND START
21 UC_SEND_MIDDLE                  12 PAYLOAD REQ SEND MIDDLE
22 UC_SEND_LAST                    12 PAYLOAD REQ COMP SEND END
23 UC_SEND_LAST_WITH_IMMEDIATE     16 IMMDT PAYLOAD REQ COMP SEND END
24 UC_SEND_ONLY                    12 PAYLOAD REQ COMP RWR SEND START END
25 UC_SEND_ONLY_WITH_IMMEDIATE     16 IMMDT PAYLOAD REQ COMP RWR SEND START END
26 UC_RDMA_WRITE_FIRST             28 RETH PAYLOAD REQ WRITE START
27 UC_RDMA_WRITE_MIDDLE            12 PAYLOAD REQ WRITE MIDDLE
28 UC_RDMA_WRITE_LAST              12 PAYLOAD REQ WRITE END
29 UC_RDMA_WRITE_LAST_WITH_IMMEDIATE 16 IMMDT PAYLOAD REQ WRITE COMP RWR END
2a UC_RDMA_WRITE_ONLY              28 RETH PAYLOAD REQ WRITE START END
2b UC_RDMA_WRITE_ONLY_WITH_IMMEDIATE 32 RETH IMMDT PAYLOAD REQ WRITE COMP RWR START END
64 UD_SEND_ONLY                    20 DETH PAYLOAD REQ COMP RWR SEND START END
65 UD_SEND_ONLY_WITH_IMMEDIATE     24 DETH IMMDT PAYLOAD REQ COMP RWR SEND START END
81 CNP                             12 PAYLOAD
`

var rxeMasks = map[string]Flags{
	"DETH": HasDETH, "FETH": HasFETH, "RETH": HasRETH, "ATMETH": HasAtomicETH, "AETH": HasAETH,
	"ATMACK": HasAtomicAckETH, "IMMDT": HasImmDt, "IETH": HasIETH, "PAYLOAD": HasPayload,
	"REQ": IsRequest, "ACK": IsResponse, "SEND": IsSend, "WRITE": IsWrite, "READ": IsRead,
	"ATOMIC": IsAtomic, "FLUSH": IsFlush, "ATOMIC_WRITE": IsAtomicWrite,
	"START": Starts, "MIDDLE": Middle, "END": Ends, "RWR": TakesReceive, "COMP": Completes,
}

// headerSizes has the sizes of the headers by their flags.
var headerSizes = map[Flags]int{
	HasDETH: 8, HasFETH: 4, HasRETH: 16, HasAtomicETH: 28, HasAETH: 4, HasAtomicAckETH: 8, HasImmDt: 4, HasIETH: 4,
}

func TestOpcodes(t *testing.T) {
	var seen [256]bool
	for line := range strings.SplitSeq(strings.TrimSpace(rxeOpcodes), "\n") {
		w := strings.Fields(line)
		value, err := hex.DecodeString(w[0])
		if err != nil {
			t.Fatal(err)
		}
		o := Opcode(value[0])
		seen[o] = true
		// Names are those of the kernel, shorter.
		name := strings.NewReplacer("_RDMA", "", "WITH_", "", "IMMEDIATE", "IMM").Replace(w[1])
		name = strings.Replace(name, "_", " ", 1)
		if o.String() != name || !o.Known() {
			t.Errorf("%#x is %q, not %q", value, o, name)
		}
		var flags Flags
		for _, m := range w[3:] {
			f, ok := rxeMasks[m]
			if !ok {
				t.Fatal(m)
			}
			flags |= f
		}
		if o.Flags() != flags {
			t.Errorf("%v: flags %b, not %b", o, o.Flags(), flags)
		}
		size := 12
		for f, n := range headerSizes {
			if flags&f != 0 {
				size += n
			}
		}
		if got := o.HeaderLen(); got != size || w[2] != itoa(size) {
			t.Errorf("%v: %d bytes of headers, not %d or %s", o, got, size, w[2])
		}
		if size > MaxHeaderSize {
			t.Errorf("%v: MaxHeaderSize is too small", o)
		}
		want := map[byte]Transport{0: RC, 1: UC, 3: UD, 4: 0x80}[value[0]>>5]
		if o.Transport() != want {
			t.Errorf("%v: %v", o, o.Transport())
		}
		if o.Has(IsRequest|IsResponse) != (o != CNP) {
			t.Errorf("%v: Has is wrong", o)
		}
	}
	for o, known := range seen {
		if o := Opcode(o); o.Known() != known || !known && (o.Flags() != 0 || o.HeaderLen() != 0 || !strings.HasPrefix(o.String(), "opcode 0x")) {
			t.Errorf("%#x: known %v, %v", uint8(o), o.Known(), o)
		}
	}
	if got := Transport(0x40).String(); got != "transport 0x40" {
		t.Error(got)
	}
}

func itoa(n int) string { return string([]byte{byte('0' + n/10), byte('0' + n%10)}) }

func TestPayloadFits(t *testing.T) {
	const mtu = 1024
	sizes := []int{0, 1, 7, 8, 9, 16, 1023, 1024, 1025}
	for op, fits := range map[Opcode][]int{
		RCSendFirst:                {1024},
		RCSendMiddle:               {1024},
		RCSendLast:                 {1, 7, 8, 9, 16, 1023, 1024},
		RCSendLastInvalidate:       {1, 7, 8, 9, 16, 1023, 1024},
		RCSendOnly:                 {0, 1, 7, 8, 9, 16, 1023, 1024},
		RCWriteFirst:               {1024},
		RCWriteLastImm:             {1, 7, 8, 9, 16, 1023, 1024},
		RCWriteOnlyImm:             {0, 1, 7, 8, 9, 16, 1023, 1024},
		RCReadRequest:              {0},
		RCReadResponseFirst:        {1024},
		RCReadResponseMiddle:       {1024},
		RCReadResponseLast:         {1, 7, 8, 9, 16, 1023, 1024},
		RCReadResponseOnly:         {0, 1, 7, 8, 9, 16, 1023, 1024},
		RCAcknowledge:              {0},
		RCAtomicAcknowledge:        {0},
		RCFetchAdd:                 {0},
		RCFlush:                    {0},
		RCAtomicWrite:              {8},
		Opcode(UC) | RCWriteMiddle: {1024},
		UDSendOnly:                 {0, 1, 7, 8, 9, 16, 1023, 1024},
		CNP:                        {16},
		0xff:                       {0},
	} {
		for _, n := range sizes {
			want := false
			for _, f := range fits {
				want = want || n == f
			}
			if got := op.PayloadFits(n, mtu); got != want {
				t.Errorf("%v: %d bytes: %v", op, n, got)
			}
		}
	}
}

// wire has packets and their bytes, from the layouts in the specification and in rxe_hdr.h.
var wire = []struct {
	packet Packet
	bytes  string // without ICRC
}{
	{
		Packet{Opcode: RCSendOnly, PKey: 0xffff, DestQP: 0x112233, PSN: 0x445566, Payload: []byte("abcd")},
		"04 00 ffff 00112233 00445566 61626364",
	},
	{
		Packet{Opcode: Opcode(UC) | RCSendOnly, Solicited: true, Migrated: true, FECN: true, BECN: true, AckReq: true, PKey: 0x8001, DestQP: 0xffffff, PSN: 0xffffff, Payload: []byte{1}},
		"24 f0 8001 c0ffffff 80ffffff 01000000",
	},
	{
		Packet{Opcode: RCSendLastImm, AckReq: true, PKey: 1, DestQP: 2, PSN: 3, Imm: [4]byte{1, 2, 3, 4}, Payload: []byte{5, 6}},
		"03 20 0001 00000002 80000003 01020304 05060000",
	},
	{
		Packet{Opcode: RCSendOnlyInvalidate, DestQP: 2, PSN: 3, IETH: 0xa1b2c3d4, Payload: []byte{5, 6, 7}},
		"17 10 0000 00000002 00000003 a1b2c3d4 05060700",
	},
	{
		Packet{Opcode: RCWriteOnlyImm, DestQP: 2, PSN: 3, RETH: RETH{0x0102030405060708, 0x090a0b0c, 0x0d0e0f10}, Imm: [4]byte{9, 8, 7, 6}, Payload: []byte{}},
		"0b 00 0000 00000002 00000003 0102030405060708 090a0b0c 0d0e0f10 09080706",
	},
	{
		Packet{Opcode: RCReadRequest, DestQP: 2, PSN: 3, RETH: RETH{0x0102030405060708, 0x090a0b0c, 0x0d0e0f10}, Payload: []byte{}},
		"0c 00 0000 00000002 00000003 0102030405060708 090a0b0c 0d0e0f10",
	},
	{
		Packet{Opcode: RCAcknowledge, DestQP: 2, PSN: 3, AETH: AETH{ACKUnlimited, 0xabcdef}, Payload: []byte{}},
		"11 00 0000 00000002 00000003 1fabcdef",
	},
	{
		Packet{Opcode: RCAtomicAcknowledge, DestQP: 2, PSN: 3, AETH: AETH{ACKUnlimited, 1}, Orig: 0x1112131415161718, Payload: []byte{}},
		"12 00 0000 00000002 00000003 1f000001 1112131415161718",
	},
	{
		Packet{Opcode: RCCompareSwap, DestQP: 2, PSN: 3, Atomic: AtomicETH{0x0102030405060708, 0x090a0b0c, 0x1112131415161718, 0x2122232425262728}, Payload: []byte{}},
		"13 00 0000 00000002 00000003 0102030405060708 090a0b0c 1112131415161718 2122232425262728",
	},
	{
		Packet{Opcode: RCFlush, DestQP: 2, PSN: 3, FETH: FETH{FlushPersistent, FlushRegion}, RETH: RETH{0x0102030405060708, 0x090a0b0c, 0x0d0e0f10}, Payload: []byte{}},
		"1c 00 0000 00000002 00000003 00000012 0102030405060708 090a0b0c 0d0e0f10",
	},
	{
		Packet{Opcode: RCAtomicWrite, DestQP: 2, PSN: 3, RETH: RETH{0x0102030405060708, 0x090a0b0c, 8}, Payload: []byte("12345678")},
		"1d 00 0000 00000002 00000003 0102030405060708 090a0b0c 00000008 3132333435363738",
	},
	{
		Packet{Opcode: UDSendOnlyImm, DestQP: 2, PSN: 3, DETH: DETH{0x80010000, 0x010203}, Imm: [4]byte{9, 8, 7, 6}, Payload: []byte("x")},
		"65 30 0000 00000002 00000003 80010000 00010203 09080706 78000000",
	},
	{
		Packet{Opcode: CNP, BECN: true, PKey: 0xffff, DestQP: 0x118, Payload: make([]byte, 16)},
		"81 00 ffff 40000118 00000000 00000000000000000000000000000000",
	},
}

func TestWire(t *testing.T) {
	for _, test := range wire {
		p := test.packet
		want, err := hex.DecodeString(strings.ReplaceAll(test.bytes, " ", ""))
		if err != nil {
			t.Fatal(err)
		}
		got := p.Append([]byte{0xee})[1:]
		if string(got) != string(want) {
			t.Errorf("%v:\n%x\n%x", &p, got, want)
		}
		if p.Len() != len(want)+ICRCSize {
			t.Errorf("%v: Len %d, not %d", &p, p.Len(), len(want)+ICRCSize)
		}
		var q Packet
		if err := q.Decode(append(want, 1, 2, 3, 4)); err != nil || !reflect.DeepEqual(p, q) {
			t.Errorf("%v:\n%+v\n%+v", err, q, p)
		}
	}
}

// TestRoundTrip encodes and decodes packets of all opcodes, in a Packet that has another one.
func TestRoundTrip(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	var q Packet
	for i := range 20000 {
		ops := known()
		p := randomPacket(r, ops[i%len(ops)], r.IntN(64))
		b := append(p.Append(nil), 0, 0, 0, 0)
		if len(b) != p.Len() || len(b)%4 != 0 {
			t.Fatalf("%v: %d bytes, Len %d", p, len(b), p.Len())
		}
		if headers := p.AppendHeaders(nil); string(headers) != string(b[:p.HeaderLen()]) {
			t.Fatalf("%v: headers %x", p, headers)
		}
		if err := q.Decode(b); err != nil || !reflect.DeepEqual(*p, q) {
			t.Fatalf("%v:\n%+v\n%+v", err, q, *p)
		}
		if cap(q.Payload) != len(q.Payload) {
			t.Fatalf("%v: the payload's capacity includes padding", p)
		}
	}
}

// TestHeaderOverflow checks that values larger than their field do not change other fields.
func TestHeaderOverflow(t *testing.T) {
	for _, op := range known() {
		big := Packet{
			Opcode: op, Pad: 0xff, DestQP: 1<<32 - 1, PSN: 1<<32 - 1, AETH: AETH{MSN: 1<<32 - 1},
			DETH: DETH{SrcQP: 1<<32 - 1}, FETH: FETH{0xff, 0xff},
		}
		fits := Packet{
			Opcode: op, Pad: 3, DestQP: mask24, PSN: mask24, AETH: AETH{MSN: mask24}, DETH: DETH{SrcQP: mask24}, FETH: FETH{15, 3},
		}
		if b, want := big.AppendHeaders(nil), fits.AppendHeaders(nil); string(b) != string(want) {
			t.Errorf("%v:\n%x\n%x", op, b, want)
		}
	}
}

func TestDecodeErrors(t *testing.T) {
	packet := func(op Opcode, payload int) []byte {
		return append((&Packet{Opcode: op, Payload: make([]byte, payload)}).Append(nil), 0, 0, 0, 0)
	}
	change := func(b []byte, at int, v byte) []byte { b[at] = v; return b }
	for _, test := range []struct {
		name string
		b    []byte
		err  error
	}{
		{"empty", nil, ErrShort},
		{"15 bytes", packet(RCSendOnly, 0)[:15], ErrShort},
		{"only BTH and ICRC", packet(RCSendOnly, 0), nil},
		{"write without RETH", change(packet(RCSendOnly, 12), 0, byte(RCWriteOnly)), ErrShort},
		{"write with RETH alone", change(packet(RCSendOnly, 16), 0, byte(RCWriteOnly)), nil},
		{"version", change(packet(RCSendOnly, 0), 1, 1), ErrVersion},
		{"version 8", change(packet(RCSendOnly, 0), 1, 8), ErrVersion},
		{"opcode 0x15", change(packet(RCSendOnly, 0), 0, 0x15), ErrOpcode},
		{"RD", change(packet(RCSendOnly, 64), 0, 0x44), ErrOpcode},
		{"XRC", change(packet(RCSendOnly, 64), 0, 0xa4), ErrOpcode},
		{"UC read", change(packet(RCSendOnly, 64), 0, 0x2c), ErrOpcode},
		{"padding without payload", change(packet(RCSendOnly, 0), 1, 0x10), ErrLength},
		{"padding of 3 in 4", change(packet(RCSendOnly, 4), 1, 0x30), nil},
		{"not a multiple of 4", packet(RCSendOnly, 4)[:19], ErrLength},
		{"payload after ACK", change(packet(RCReadResponseOnly, 4), 0, byte(RCAcknowledge)), ErrLength},
		{"padding after ACK", change(packet(RCAcknowledge, 0), 1, 0x10), ErrLength},
		{"payload after read request", change(packet(RCWriteOnly, 4), 0, byte(RCReadRequest)), ErrLength},
		{"64 KiB", packet(RCSendOnly, 65000), nil},
	} {
		var p Packet
		if err := p.Decode(test.b); !errors.Is(err, test.err) {
			t.Errorf("%s: %v, not %v", test.name, err, test.err)
		}
	}
}

// TestDecodeLengths decodes all packets with all lengths: those that are whole and no others.
func TestDecodeLengths(t *testing.T) {
	for o := range 256 {
		o := Opcode(o)
		for pad := range 4 {
			b := make([]byte, 128)
			b[0], b[1] = byte(o), byte(pad<<4)
			for n := range len(b) + 1 {
				extra := n - o.HeaderLen() - ICRCSize
				want := o.Known() && n%4 == 0 && extra >= pad && (o.Has(HasPayload) || extra == 0)
				var p Packet
				if err := p.Decode(b[:n]); (err == nil) != want {
					t.Errorf("%v of %d bytes, padding %d: %v", o, n, pad, err)
				} else if err == nil && len(p.Payload) != extra-pad {
					t.Errorf("%v of %d bytes, padding %d: payload of %d", o, n, pad, len(p.Payload))
				}
			}
		}
	}
}

func TestPadding(t *testing.T) {
	for n, want := range []int{0, 3, 2, 1, 0, 3, 2, 1, 0} {
		p := Padding(n)
		if int(PadLen(n)) != want || len(p) != want || cap(p) != want {
			t.Errorf("%d bytes: %d, %d of %d bytes of padding", n, PadLen(n), len(p), cap(p))
		}
	}
}

func TestPSN(t *testing.T) {
	for _, test := range []struct {
		p, q PSN
		sub  int
	}{
		{0, 0, 0}, {1, 0, 1}, {0, 1, -1}, {0, PSNMask, 1}, {PSNMask, 0, -1},
		{1<<23 - 1, 0, 1<<23 - 1}, {1 << 23, 0, -1 << 23}, {0, 1 << 23, -1 << 23}, {5, PSNMask - 4, 10},
	} {
		if got := test.p.Sub(test.q); got != test.sub {
			t.Errorf("%d - %d = %d, not %d", test.p, test.q, got, test.sub)
		}
		if test.p.Before(test.q) != (test.sub < 0) || test.p.After(test.q) != (test.sub > 0) {
			t.Errorf("order of %d and %d", test.p, test.q)
		}
		if got := test.q.Add(test.sub); got != test.p {
			t.Errorf("%d + %d = %d, not %d", test.q, test.sub, got, test.p)
		}
	}
}
