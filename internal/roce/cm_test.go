package roce

import (
	"encoding/hex"
	"errors"
	"math/rand/v2"
	"net/netip"
	"reflect"
	"strings"
	"testing"
)

// cmLayout has the fields of the messages as the kernel's include/rdma/ibta_vol1_c12.h does:
// the byte, the bit in it and the width in bits of each part. A field of several parts has the
// upper bits first. "header" counts from the start of the header.
var cmLayout = []struct {
	message CMMessage
	attr    uint16
	fields  string
}{
	{&REQ{}, 0x10, `
		LocalCommID 0.0:32
		VendorID 5.0:24
		ECEOptions header20.0:32
		ServiceID 8.0:64
		LocalCAGUID 16.0:64
		LocalQKey 28.0:32
		LocalQPN 32.0:24
		ResponderResources 35.0:8
		LocalEECN 36.0:24
		InitiatorDepth 39.0:8
		RemoteEECN 40.0:24
		RemoteCMResponseTimeout 43.0:5
		Transport 43.5:2
		FlowControl 43.7:1
		StartingPSN 44.0:24
		LocalCMResponseTimeout 47.0:5
		RetryCount 47.5:3
		PKey 48.0:16
		PathMTU 50.0:4
		RDCExists 50.4:1
		RNRRetryCount 50.5:3
		MaxCMRetries 51.0:4
		SRQ 51.4:1
		ExtendedTransport 51.5:3
		Primary.LocalLID 52.0:16
		Primary.RemoteLID 54.0:16
		Primary.LocalGID 56.0:128
		Primary.RemoteGID 72.0:128
		Primary.FlowLabel 88.0:20
		Primary.PacketRate 91.2:6
		Primary.TrafficClass 92.0:8
		Primary.HopLimit 93.0:8
		Primary.SL 94.0:4
		Primary.SubnetLocal 94.4:1
		Primary.LocalACKTimeout 95.0:5
		Alternate.LocalLID 96.0:16
		Alternate.RemoteLID 98.0:16
		Alternate.LocalGID 100.0:128
		Alternate.RemoteGID 116.0:128
		Alternate.FlowLabel 132.0:20
		Alternate.PacketRate 135.2:6
		Alternate.TrafficClass 136.0:8
		Alternate.HopLimit 137.0:8
		Alternate.SL 138.0:4
		Alternate.SubnetLocal 138.4:1
		Alternate.LocalACKTimeout 139.0:5
		SAPSupported 139.5:1
		PrivateData 140.0:736`},
	{&MRA{}, 0x11, `
		LocalCommID 0.0:32
		RemoteCommID 4.0:32
		Message 8.0:2
		ServiceTimeout 9.0:5
		PrivateData 10.0:1776`},
	{&REJ{}, 0x12, `
		LocalCommID 0.0:32
		RemoteCommID 4.0:32
		Message 8.0:2
		Reason 10.0:16
		Info 12.0:576
		PrivateData 84.0:1184`},
	{&REP{}, 0x13, `
		LocalCommID 0.0:32
		RemoteCommID 4.0:32
		LocalQKey 8.0:32
		LocalQPN 12.0:24
		VendorID 15.0:8 19.0:8 23.0:8
		ECEOptions header20.0:32
		LocalEECN 16.0:24
		StartingPSN 20.0:24
		ResponderResources 24.0:8
		InitiatorDepth 25.0:8
		TargetACKDelay 26.0:5
		FailoverAccepted 26.5:2
		FlowControl 26.7:1
		RNRRetryCount 27.0:3
		SRQ 27.3:1
		LocalCAGUID 28.0:64
		PrivateData 36.0:1568`},
	{&RTU{}, 0x14, `
		LocalCommID 0.0:32
		RemoteCommID 4.0:32
		PrivateData 8.0:1792`},
	{&DREQ{}, 0x15, `
		LocalCommID 0.0:32
		RemoteCommID 4.0:32
		RemoteQPN 8.0:24
		PrivateData 12.0:1760`},
	{&DREP{}, 0x16, `
		LocalCommID 0.0:32
		RemoteCommID 4.0:32
		PrivateData 8.0:1792`},
	{&SIDRREQ{}, 0x17, `
		RequestID 0.0:32
		PKey 4.0:16
		ServiceID 8.0:64
		PrivateData 16.0:1728`},
	{&SIDRREP{}, 0x18, `
		RequestID 0.0:32
		Status 4.0:8
		VendorID 6.0:16 11.0:8
		ECEOptions header20.0:32
		QPN 8.0:24
		ServiceID 12.0:64
		QKey 20.0:32
		Info 24.0:576
		PrivateData 96.0:1088`},
}

// fieldOf returns the field of a message by its path.
func fieldOf(m CMMessage, path string) reflect.Value {
	v := reflect.ValueOf(m).Elem()
	for name := range strings.SplitSeq(path, ".") {
		v = v.FieldByName(name)
	}
	return v
}

// fill sets the lowest bits of an integer, a bool or as many bytes to random values that are
// not 0, or to ones.
func fill(v reflect.Value, bits int, next func() uint64) {
	switch v.Kind() {
	case reflect.Bool:
		v.SetBool(true)
	case reflect.Slice:
		v.SetBytes(make([]byte, bits/8))
		fallthrough
	case reflect.Array:
		for i := range bits / 8 {
			v.Index(i).SetUint(next()%255 + 1)
		}
	default:
		v.SetUint(max(next()&(1<<bits-1), 1))
	}
}

// parts returns the bits of a field in the datagram, the highest one first, from 8*byte + bit.
func parts(t *testing.T, words []string) (bits []int) {
	for _, w := range words {
		var at, bit, n int
		base := MADHeaderSize
		if rest, ok := strings.CutPrefix(w, "header"); ok {
			w, base = rest, 0
		}
		if !scan(w, &at, &bit, &n) {
			t.Fatal(w)
		}
		for i := range n {
			bits = append(bits, (base+at)*8+bit+i)
		}
	}
	return bits
}

func scan(s string, at, bit, n *int) bool {
	for _, part := range []struct {
		to  *int
		end byte
	}{{at, '.'}, {bit, ':'}, {n, 0}} {
		for s != "" && s[0] != part.end {
			*part.to = *part.to*10 + int(s[0]-'0')
			s = s[1:]
		}
		s = strings.TrimPrefix(s, string(part.end))
	}
	return s == ""
}

func newMessage(m CMMessage) CMMessage {
	return reflect.New(reflect.TypeOf(m).Elem()).Interface().(CMMessage)
}

// TestCMLayout sets each field of each message, and checks that it sets the bits of the
// specification, all of them and no others, and is decoded.
func TestCMLayout(t *testing.T) {
	const tid = 0x0123456789abcdef
	r := rand.New(rand.NewPCG(1, 2))
	for _, test := range cmLayout {
		if uint16(test.message.Attr()) != test.attr {
			t.Errorf("%T: attribute %v", test.message, test.message.Attr())
		}
		empty, err := AppendCM(nil, tid, test.message)
		if err != nil || len(empty) != MADSize {
			t.Fatalf("%T: %d bytes, %v", test.message, len(empty), err)
		}
		header := "01070203" + "0000" + "0000" + "0123456789abcdef" + hex.EncodeToString([]byte{0, byte(test.attr)}) + "0000" + "00000000"
		if got := hex.EncodeToString(empty); got != header+strings.Repeat("00", MADSize-MADHeaderSize) {
			t.Errorf("%T: %s", test.message, got)
		}
		used := make([]string, MADSize*8)
		fields := 0
		for line := range strings.SplitSeq(strings.TrimSpace(test.fields), "\n") {
			words := strings.Fields(line)
			name, bits := words[0], parts(t, words[1:])
			fields++
			for _, b := range bits {
				if used[b] != "" {
					t.Errorf("%T: %s and %s overlap", test.message, name, used[b])
				}
				used[b] = name
			}
			for _, ones := range []bool{true, false} {
				m := newMessage(test.message)
				next := r.Uint64
				if ones {
					next = func() uint64 { return 1<<64 - 2 } // 255 in bytes
				}
				v := fieldOf(m, name)
				fill(v, len(bits), next)
				if ones && v.CanUint() {
					v.SetUint(1<<len(bits) - 1)
				}
				b, err := AppendCM(nil, tid, m)
				if err != nil {
					t.Fatal(err)
				}
				want := append([]byte{}, empty...)
				for i, bit := range bits {
					if fieldBit(v, len(bits), i) {
						want[bit/8] |= 0x80 >> (bit % 8)
					}
				}
				// The length of additional information is in the byte before.
				if name == "Info" && test.attr == 0x12 {
					want[MADHeaderSize+9] = 72 << 1
				} else if name == "Info" {
					want[MADHeaderSize+5] = 72
				}
				if string(b) != string(want) {
					t.Errorf("%T.%s:\n%x\n%x", m, name, b, want)
				}
				h, got, err := DecodeCM(b)
				if err != nil || h.TID != tid {
					t.Fatalf("%T: %v", m, err)
				}
				if g := fieldOf(got, name); !reflect.DeepEqual(g.Interface(), v.Interface()) {
					t.Errorf("%T.%s: %v, not %v", m, name, g, v)
				}
				again, err := AppendCM(nil, tid, got)
				if err != nil || string(again) != string(b) {
					t.Errorf("%T.%s: encoded again:\n%x\n%x", m, name, again, b)
				}
			}
		}
		if n := countFields(reflect.TypeOf(test.message).Elem()); n != fields {
			t.Errorf("%T has %d fields, %d were checked", test.message, n, fields)
		}
	}
}

// fieldBit returns bit i of a field of n bits, where 0 is the highest one.
func fieldBit(v reflect.Value, n, i int) bool {
	switch v.Kind() {
	case reflect.Bool:
		return v.Bool()
	case reflect.Array, reflect.Slice:
		return v.Index(i/8).Uint()&(0x80>>(i%8)) != 0
	}
	return v.Uint()>>(n-1-i)&1 != 0
}

func countFields(t reflect.Type) (n int) {
	for f := range fieldsOf(t) {
		if f.Type.Kind() == reflect.Struct {
			n += countFields(f.Type)
		} else {
			n++
		}
	}
	return n
}

func fieldsOf(t reflect.Type) func(func(reflect.StructField) bool) {
	return func(yield func(reflect.StructField) bool) {
		for i := range t.NumField() {
			if !yield(t.Field(i)) {
				return
			}
		}
	}
}

// randomMessage returns a message with random values in all fields.
func randomMessage(r *rand.Rand, i int) CMMessage {
	test := cmLayout[i%len(cmLayout)]
	m := newMessage(test.message)
	for line := range strings.SplitSeq(strings.TrimSpace(test.fields), "\n") {
		words := strings.Fields(line)
		n := 0
		for _, w := range words[1:] {
			var at, bit, bits int
			scan(strings.TrimPrefix(w, "header"), &at, &bit, &bits)
			n += bits
		}
		fill(fieldOf(m, words[0]), n, r.Uint64)
	}
	return m
}

// TestCMRoundTrip encodes and decodes messages with all fields set.
func TestCMRoundTrip(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	for i := range 900 {
		m := randomMessage(r, i)
		prefix := []byte("before")
		b, err := AppendCM(prefix, uint64(i), m)
		if err != nil || string(b[:len(prefix)]) != string(prefix) {
			t.Fatal(err)
		}
		b = b[len(prefix):]
		h, got, err := DecodeCM(b)
		if err != nil || !reflect.DeepEqual(got, m) {
			t.Fatalf("%T, %v:\n%+v\n%+v", m, err, got, m)
		}
		if h != (MADHeader{BaseVersion: 1, Class: 7, ClassVersion: 2, Method: 3, TID: uint64(i), Attr: m.Attr(), Modifier: h.Modifier}) {
			t.Errorf("header %+v", h)
		}
		clear(b)
		if !reflect.DeepEqual(got, m) {
			t.Fatalf("%T refers to the datagram", m)
		}
	}
}

// TestCMOverflow checks that values larger than their field do not change other fields.
func TestCMOverflow(t *testing.T) {
	const all24, all8 = 1<<32 - 1, 1<<8 - 1
	for _, test := range []struct{ big, want CMMessage }{
		{&REQ{VendorID: all24}, &REQ{VendorID: mask24}},
		{&REQ{LocalQPN: all24, LocalEECN: all24}, &REQ{LocalQPN: mask24, LocalEECN: mask24}},
		{&REQ{RemoteCMResponseTimeout: all8}, &REQ{RemoteCMResponseTimeout: 31}},
		{&REQ{Transport: all8}, &REQ{Transport: 3}},
		{&REQ{LocalCMResponseTimeout: all8}, &REQ{LocalCMResponseTimeout: 31}},
		{&REQ{RetryCount: all8}, &REQ{RetryCount: 7}},
		{&REQ{PathMTU: all8, RNRRetryCount: all8}, &REQ{PathMTU: 15, RNRRetryCount: 7}},
		{&REQ{MaxCMRetries: all8, ExtendedTransport: all8}, &REQ{MaxCMRetries: 15, ExtendedTransport: 7}},
		{
			&REQ{Primary: CMPath{FlowLabel: all24, PacketRate: all8, SL: all8, LocalACKTimeout: all8}},
			&REQ{Primary: CMPath{FlowLabel: 1<<20 - 1, PacketRate: 63, SL: 15, LocalACKTimeout: 31}},
		},
		{&MRA{Message: all8, ServiceTimeout: all8}, &MRA{Message: 3, ServiceTimeout: 31}},
		{&REJ{Message: all8}, &REJ{Message: 3}},
		{&REP{VendorID: all24, LocalQPN: all24}, &REP{VendorID: mask24, LocalQPN: mask24}},
		{&REP{TargetACKDelay: all8}, &REP{TargetACKDelay: 31}},
		{&REP{FailoverAccepted: all8}, &REP{FailoverAccepted: 3}},
		{&REP{RNRRetryCount: all8}, &REP{RNRRetryCount: 7}},
		{&DREQ{RemoteQPN: all24}, &DREQ{RemoteQPN: mask24}},
		{&SIDRREP{VendorID: all24, QPN: all24}, &SIDRREP{VendorID: mask24, QPN: mask24}},
	} {
		got, err := AppendCM(nil, 1, test.big)
		want := must(AppendCM(nil, 1, test.want))
		if err != nil || string(got) != string(want) {
			t.Errorf("%+v, %v:\n%x\n%x", test.big, err, got, want)
		}
	}
}

// TestCMPrivateData checks the limits of private data and additional information.
func TestCMPrivateData(t *testing.T) {
	for _, test := range []struct {
		size int
		of   func(b []byte) CMMessage
	}{
		{92, func(b []byte) CMMessage { return &REQ{PrivateData: b} }},
		{222, func(b []byte) CMMessage { return &MRA{PrivateData: b} }},
		{148, func(b []byte) CMMessage { return &REJ{PrivateData: b} }},
		{72, func(b []byte) CMMessage { return &REJ{Info: b} }},
		{196, func(b []byte) CMMessage { return &REP{PrivateData: b} }},
		{224, func(b []byte) CMMessage { return &RTU{PrivateData: b} }},
		{220, func(b []byte) CMMessage { return &DREQ{PrivateData: b} }},
		{224, func(b []byte) CMMessage { return &DREP{PrivateData: b} }},
		{216, func(b []byte) CMMessage { return &SIDRREQ{PrivateData: b} }},
		{136, func(b []byte) CMMessage { return &SIDRREP{PrivateData: b} }},
		{72, func(b []byte) CMMessage { return &SIDRREP{Info: b} }},
	} {
		data := []byte(strings.Repeat("x", test.size+1))
		if b, err := AppendCM([]byte("y"), 1, test.of(data)); !errors.Is(err, ErrPrivateData) || string(b) != "y" {
			t.Errorf("%T with %d bytes: %v", test.of(nil), len(data), err)
		}
		for _, n := range []int{0, 1, test.size} {
			b, err := AppendCM(nil, 1, test.of(data[:n]))
			if err != nil || strings.Count(string(b[24:]), "x") != n || len(b) != MADSize {
				t.Errorf("%T with %d bytes: %v, %x", test.of(nil), n, err, b)
			}
		}
	}
	// The length of additional information from the wire.
	for length, want := range map[byte]int{0: 0, 1: 1, 72: 72, 73: 72, 127: 72} {
		rej := must(AppendCM(nil, 1, &REJ{}))
		rej[MADHeaderSize+9] = length<<1 | 1 // the lowest bit is reserved
		_, m, err := DecodeCM(rej)
		if err != nil || len(m.(*REJ).Info) != want {
			t.Errorf("REJ with length %d: %+v, %v", length, m, err)
		}
		rep := must(AppendCM(nil, 1, &SIDRREP{}))
		rep[MADHeaderSize+5] = length
		_, m, err = DecodeCM(rep)
		if err != nil || len(m.(*SIDRREP).Info) != want {
			t.Errorf("SIDR_REP with length %d: %+v, %v", length, m, err)
		}
	}
}

// TestDecodeCMErrors checks what is not a message of the communication manager.
func TestDecodeCMErrors(t *testing.T) {
	good := must(AppendCM(nil, 5, &RTU{}))
	for _, test := range []struct {
		name   string
		change func(b []byte) []byte
		err    error
	}{
		{"empty", func([]byte) []byte { return nil }, ErrMADLength},
		{"short", func(b []byte) []byte { return b[:255] }, ErrMADLength},
		{"long", func(b []byte) []byte { return append(b, 0) }, ErrMADLength},
		{"base version", func(b []byte) []byte { b[0] = 2; return b }, ErrNotCM},
		{"class", func(b []byte) []byte { b[1] = 3; return b }, ErrNotCM},
		{"class version", func(b []byte) []byte { b[2] = 1; return b }, ErrNotCM},
		{"method", func(b []byte) []byte { b[3] = 1; return b }, ErrNotCM},
		{"LAP", func(b []byte) []byte { b[17] = 0x19; return b }, ErrMessage},
		{"APR", func(b []byte) []byte { b[17] = 0x1a; return b }, ErrMessage},
		{"attribute", func(b []byte) []byte { b[16] = 1; return b }, ErrMessage},
	} {
		h, m, err := DecodeCM(test.change(append([]byte{}, good...)))
		if !errors.Is(err, test.err) || m != nil {
			t.Errorf("%s: %v, %v", test.name, m, err)
		}
		if err != ErrMADLength && h.TID != 5 {
			t.Errorf("%s: header %+v", test.name, h)
		}
	}
}

func TestCMNames(t *testing.T) {
	for got, want := range map[string]string{
		AttrREQ.String():      "REQ",
		AttrSIDRREP.String():  "SIDR_REP",
		AttrAPR.String():      "APR",
		CMAttr(0x1b).String(): "attribute 0x001b",
		CMAttr(0x0f).String(): "attribute 0x000f",
	} {
		if got != want {
			t.Errorf("%q, not %q", got, want)
		}
	}
}

func TestCMAHeader(t *testing.T) {
	for _, test := range []struct {
		header CMAHeader
		wire   string
	}{
		{
			CMAHeader{0x1234, netip.MustParseAddr("10.9.0.1"), netip.MustParseAddr("10.9.0.2")},
			"00401234" + "0000000000000000000000000a090001" + "0000000000000000000000000a090002",
		},
		{
			CMAHeader{0xffff, netip.MustParseAddr("2001:db8::1"), netip.MustParseAddr("fe80::2")},
			"0060ffff" + "20010db8000000000000000000000001" + "fe800000000000000000000000000002",
		},
	} {
		b := test.header.Append([]byte{9})
		if got := hex.EncodeToString(b[1:]); got != test.wire || b[0] != 9 || len(b) != 1+CMAHeaderSize {
			t.Errorf("%+v: %s", test.header, got)
		}
		var h CMAHeader
		if err := h.Decode(append(b[1:], "more"...)); err != nil || h != test.header {
			t.Errorf("%+v, %v, not %+v", h, err, test.header)
		}
		for _, bad := range [][]byte{nil, b[1:36], append([]byte{1}, b[2:]...), append([]byte{0, 0x50}, b[3:]...)} {
			if err := h.Decode(bad); !errors.Is(err, ErrCMAHeader) {
				t.Errorf("%x: %v", bad, err)
			}
		}
	}
	mapped := CMAHeader{1, netip.MustParseAddr("::ffff:10.0.0.1"), netip.MustParseAddr("::ffff:10.0.0.2")}
	var h CMAHeader
	if err := h.Decode(mapped.Append(nil)); err != nil || !h.Src.Is4() || h.Dst != mapped.Dst.Unmap() {
		t.Errorf("mapped addresses: %+v, %v", h, err)
	}
}
