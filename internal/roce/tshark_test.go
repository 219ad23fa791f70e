package roce

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/goverbs/verbs/internal/labtest/tool"
)

// writePcap writes IP packets as a capture file (LINKTYPE_RAW).
func writePcap(t *testing.T, packets [][]byte) string {
	const linkTypeRaw = 101
	le := binary.LittleEndian
	b := le.AppendUint32(nil, 0xa1b2c3d4)
	b = le.AppendUint16(b, 2)
	b = le.AppendUint16(b, 4)
	for _, v := range []uint32{0, 0, 1 << 16, linkTypeRaw} {
		b = le.AppendUint32(b, v)
	}
	for i, p := range packets {
		for _, v := range []int{1, i, len(p), len(p)} {
			b = le.AppendUint32(b, uint32(v))
		}
		b = append(b, p...)
	}
	name := filepath.Join(t.TempDir(), "roce.pcap")
	if err := os.WriteFile(name, b, 0o600); err != nil {
		t.Fatal(err)
	}
	return name
}

// tshark returns the lines that tshark prints for a capture, one per packet, with the fields
// separated by tabs.
func tshark(t *testing.T, capture string, fields []string) [][]string {
	t.Helper()
	// Applications' protocols would be guessed in the payload.
	args := []string{
		"-r", capture, "-n", "-T", "fields",
		"--disable-protocol", "rpcordma", "--disable-protocol", "infiniband_sdp", "--disable-protocol", "nvme-rdma",
		"--disable-protocol", "smb_direct", "--disable-protocol", "iser",
	}
	for _, f := range fields {
		args = append(args, "-e", f)
	}
	cmd := exec.CommandContext(t.Context(), tool.Path(t, "tshark"), args...)
	cmd.WaitDelay = 10 * time.Second
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%v: %s", err, stderr.String())
	}
	var lines [][]string
	for line := range strings.SplitSeq(strings.TrimSuffix(string(out), "\n"), "\n") {
		values := strings.Split(line, "\t")
		for i, v := range values {
			// Some fields are also in the line of the header that contains them.
			if v, again, ok := strings.Cut(v, ","); ok && v == again {
				values[i] = v
			}
		}
		lines = append(lines, values)
	}
	return lines
}

// number parses what tshark prints for a number, with or without base, or a bool.
func number(t *testing.T, s string) uint64 {
	t.Helper()
	switch s {
	case "True":
		return 1
	case "False":
		return 0
	}
	v, err := strconv.ParseUint(s, 0, 64)
	if err != nil {
		t.Error(err)
	}
	return v
}

func one(set bool) uint64 {
	if set {
		return 1
	}
	return 0
}

// shark is a field of tshark and what it has to be for a packet with some headers.
type shark struct {
	field  string
	header Flags // 0: all packets
	value  func(p *Packet) uint64
}

var sharkFields = []shark{
	{"infiniband.bth.opcode", 0, func(p *Packet) uint64 { return uint64(p.Opcode) }},
	{"infiniband.bth.se", 0, func(p *Packet) uint64 { return one(p.Solicited) }},
	{"infiniband.bth.m", 0, func(p *Packet) uint64 { return one(p.Migrated) }},
	{"infiniband.bth.padcnt", 0, func(p *Packet) uint64 { return uint64(p.Pad) }},
	{"infiniband.bth.tver", 0, func(p *Packet) uint64 { return 0 }},
	{"infiniband.bth.p_key", 0, func(p *Packet) uint64 { return uint64(p.PKey) }},
	{"infiniband.bth.destqp", 0, func(p *Packet) uint64 { return uint64(p.DestQP) }},
	{"infiniband.bth.a", 0, func(p *Packet) uint64 { return one(p.AckReq) }},
	{"infiniband.bth.psn", 0, func(p *Packet) uint64 { return uint64(p.PSN) }},
	{"infiniband.deth.q_key", HasDETH, func(p *Packet) uint64 { return uint64(p.DETH.QKey) }},
	{"infiniband.deth.srcqp", HasDETH, func(p *Packet) uint64 { return uint64(p.DETH.SrcQP) }},
	{"infiniband.reth.va", HasRETH | HasAtomicETH, func(p *Packet) uint64 { return p.RETH.VA | p.Atomic.VA }},
	{"infiniband.reth.r_key", HasRETH | HasAtomicETH, func(p *Packet) uint64 { return uint64(p.RETH.RKey | p.Atomic.RKey) }},
	{"infiniband.reth.dmalen", HasRETH, func(p *Packet) uint64 { return uint64(p.RETH.Length) }},
	{"infiniband.atomiceth.swapdt", HasAtomicETH, func(p *Packet) uint64 { return p.Atomic.SwapAdd }},
	{"infiniband.atomiceth.cmpdt", HasAtomicETH, func(p *Packet) uint64 { return p.Atomic.Compare }},
	{"infiniband.aeth.syndrome", HasAETH, func(p *Packet) uint64 { return uint64(p.AETH.Syndrome) }},
	{"infiniband.aeth.msn", HasAETH, func(p *Packet) uint64 { return uint64(p.AETH.MSN) }},
	{"infiniband.atomicacketh.origremdt", HasAtomicAckETH, func(p *Packet) uint64 { return p.Orig }},
}

// TestTshark checks packets of each opcode, with IPv4 and IPv6, by Wireshark's dissector.
func TestTshark(t *testing.T) {
	var packets [][]byte
	var sent []*Packet
	for i, op := range known() {
		for _, h := range sharkHeaders {
			p := &Packet{
				Opcode: op, Solicited: i%2 == 0, Migrated: i%3 == 0, AckReq: i%4 == 0, PKey: 0xfff0 + uint16(i%16),
				DestQP: 0x112200 + uint32(i), PSN: PSN(0x445500 + i),
				AETH: AETH{[]Syndrome{ACKUnlimited, 5, RNRNAK(9), NAKRemoteAccess}[i%4], 0x778800 + uint32(i)},
			}
			f := op.Flags()
			if f&HasRETH != 0 {
				p.RETH = RETH{0x0102030405060708, 0x090a0b0c, 0x0d0e0f}
			}
			if f&HasAtomicETH != 0 {
				p.Atomic = AtomicETH{0x1112131415161718, 0x191a1b1c, 0x2122232425262728, 0x292a2b2c2d2e2f20}
			}
			p.DETH, p.Orig, p.IETH = DETH{0x11111111, 0x223344}, 0x3132333435363738, 0x393a3b3c
			p.Imm = [4]byte{0x41, 0x42, 0x43, byte(i)}
			if f&HasPayload != 0 {
				p.Payload = bytes.Repeat([]byte{0x5a}, 17+i)
			}
			if op == CNP {
				p.Payload = make([]byte, cnpSize)
			}
			if f&IsAtomicWrite != 0 {
				p.Payload = p.Payload[:8]
			}
			b := h.flow().AppendICRC(p.Append(nil), h.id)
			packets = append(packets, h.datagram(b))
			sent = append(sent, p)
		}
	}
	// Wireshark 4.0 does not know these, and decodes their BTH only.
	unknown := func(o Opcode) bool { return o == RCFlush || o == RCAtomicWrite }

	fields := []string{"_ws.malformed", "_ws.expert.message", "udp.dstport", "infiniband.invariant.crc", "infiniband.immdt", "infiniband.ieth", "data.len"}
	for _, f := range sharkFields {
		fields = append(fields, f.field)
	}
	lines := tshark(t, writePcap(t, packets), fields)
	if len(lines) != len(packets) {
		t.Fatalf("%d lines of %d packets", len(lines), len(packets))
	}
	for i, line := range lines {
		p, b := sent[i], packets[i]
		if len(line) != len(fields) {
			t.Fatalf("%v: %q", p, line)
		}
		if line[0] != "" || strings.Contains(strings.ToLower(line[1]), "malformed") {
			t.Errorf("%v: malformed: %q", p, line[:2])
		}
		if line[2] != "4791" {
			t.Errorf("%v: port %s", p, line[2])
		}
		if !unknown(p.Opcode) && p.Opcode != CNP { // which Wireshark dissects without ICRC
			if got, want := number(t, line[3]), uint64(binary.BigEndian.Uint32(b[len(b)-4:])); got != want {
				t.Errorf("%v: ICRC %#x, not %#x", p, got, want)
			}
		}
		imm, key := "", ""
		if p.Opcode.Has(HasImmDt) {
			imm = hex.EncodeToString(p.Imm[:])
		}
		if p.Opcode.Has(HasIETH) {
			key = fmt.Sprintf("%08x", p.IETH)
		}
		if line[4] != imm || line[5] != key {
			t.Errorf("%v: immediate data %s, not %s, or key %s, not %s", p, line[4], imm, line[5], key)
		}
		if p.Opcode.Has(HasPayload) && p.Opcode != CNP && !unknown(p.Opcode) {
			// Wireshark's payload includes the padding.
			if got, want := number(t, line[6]), uint64(len(p.Payload)+int(p.Pad)); got != want {
				t.Errorf("%v: payload of %d bytes, not %d", p, got, want)
			}
		}
		for j, f := range sharkFields {
			got := line[7+j]
			if f.header != 0 && (!p.Opcode.Has(f.header) || unknown(p.Opcode)) {
				if got != "" {
					t.Errorf("%v: %s is %s", p, f.field, got)
				}
				continue
			}
			if want := f.value(p); got == "" || number(t, got) != want {
				t.Errorf("%v: %s is %q, not %#x", p, f.field, got, want)
			}
		}
	}
	t.Logf("%d packets, %d fields", len(packets), len(fields))
}

var sharkHeaders = []ip{
	{
		src: netip.MustParseAddrPort("10.9.0.1:50000"), dst: netip.MustParseAddrPort("10.9.0.2:4791"),
		tos: 2, ttl: 64, id: 0x4321, flags: 0x40,
	},
	{
		src: netip.MustParseAddrPort("[2001:db8::1]:50001"), dst: netip.MustParseAddrPort("[2001:db8::2]:4791"),
		tos: 2, ttl: 64, label: 0x12345,
	},
}

// TestTsharkCM checks the messages of the communication manager by Wireshark's dissector, with
// the fields that it has. Not compared are flow labels and packet rates of paths: Wireshark 4.0
// decodes the first 3 bytes and the first byte of the 4 that have them.
func TestTsharkCM(t *testing.T) {
	src, dst := netip.MustParseAddr("10.9.0.1"), netip.MustParseAddr("10.9.0.2")
	gid := func(a netip.Addr) [16]byte { return a.As16() }
	path := CMPath{
		LocalLID: 0x0102, RemoteLID: 0x0304, LocalGID: gid(src), RemoteGID: gid(dst), FlowLabel: 0xabcde,
		PacketRate: 0x2a, TrafficClass: 0x77, HopLimit: 0x40, SL: 9, SubnetLocal: true, LocalACKTimeout: 19,
	}
	alternate := path
	alternate.LocalLID, alternate.PacketRate, alternate.LocalACKTimeout = 0x1112, 0x15, 20
	alternate.LocalGID[0], alternate.RemoteGID[0] = 0x20, 0x20
	req := &REQ{
		LocalCommID: 0x01020304, ServiceID: 0x0106<<16 | 4420, LocalCAGUID: 0x1112131415161718,
		LocalQKey: 0x21222324, LocalQPN: 0x252627, ResponderResources: 16, LocalEECN: 0x313233, InitiatorDepth: 15,
		RemoteEECN: 0x343536, RemoteCMResponseTimeout: 20, Transport: CMTransportUC, FlowControl: true,
		StartingPSN: 0x414243, LocalCMResponseTimeout: 21, RetryCount: 5, PKey: 0x8001, PathMTU: 3, RDCExists: true,
		RNRRetryCount: 6, MaxCMRetries: 14, SRQ: true, ExtendedTransport: 5, Primary: path, Alternate: alternate,
		PrivateData: append((&CMAHeader{Port: 0x9abc, Src: src, Dst: dst}).Append(nil), "hello"...),
	}
	type values map[string]string
	hexes := func(b []byte, n int) string {
		return hex.EncodeToString(append(bytes.Clone(b), make([]byte, n-len(b))...))
	}
	n := func(v uint64) string { return fmt.Sprint(v) }
	tests := []struct {
		message CMMessage
		want    values
	}{
		{req, values{
			"infiniband.cm.req": n(0x01020304), "infiniband.cm.req.serviceid.protocol": n(6),
			"infiniband.cm.req.serviceid.dport": n(4420), "infiniband.cm.req.localcaguid": n(0x1112131415161718),
			"infiniband.cm.req.localqkey": n(0x21222324), "infiniband.cm.req.localqpn": n(0x252627),
			"infiniband.cm.req.responderres": n(16), "infiniband.cm.req.localeecn": n(0x313233),
			"infiniband.cm.req.initdepth": n(15), "infiniband.cm.req.remoteeecn": n(0x343536),
			"infiniband.cm.req.remoteresptout": n(20), "infiniband.cm.req.transpsvctype": n(1),
			"infiniband.cm.req.e2eflowctrl": n(1), "infiniband.cm.req.startpsn": n(0x414243),
			"infiniband.cm.req.localresptout": n(21), "infiniband.cm.req.retrcount": n(5),
			"infiniband.cm.req.pkey": n(0x8001), "infiniband.cm.req.pppmtu": n(3),
			"infiniband.cm.req.rdcexist": n(1), "infiniband.cm.req.rnrretrcount": n(6),
			"infiniband.cm.req.maxcmretr": n(14), "infiniband.cm.req.srq": n(1), "infiniband.cm.req.ext_transport": n(5),
			"infiniband.cm.req.prim_locallid": n(0x0102), "infiniband.cm.req.prim_remotelid": n(0x0304),
			"infiniband.cm.req.prim_localgid_ipv4": "10.9.0.1", "infiniband.cm.req.prim_remotegid_ipv4": "10.9.0.2",
			"infiniband.cm.req.prim_tfcclass": n(0x77), "infiniband.cm.req.prim_hoplim": n(0x40),
			"infiniband.cm.req.prim_sl": n(9), "infiniband.cm.req.prim_subnetlocal": n(1),
			"infiniband.cm.req.prim_localacktout": n(19),
			"infiniband.cm.req.alt_locallid":      n(0x1112), "infiniband.cm.req.alt_remotelid": n(0x0304),
			"infiniband.cm.req.alt_localgid":  hex.EncodeToString(alternate.LocalGID[:]),
			"infiniband.cm.req.alt_remotegid": hex.EncodeToString(alternate.RemoteGID[:]),
			"infiniband.cm.req.alt_tfcclass":  n(0x77), "infiniband.cm.req.alt_hoplim": n(0x40),
			"infiniband.cm.req.alt_sl": n(9), "infiniband.cm.req.alt_subnetlocal": n(1),
			"infiniband.cm.req.alt_localacktout": n(20),
			"infiniband.cm.req.ip_cm.majv":       n(0), "infiniband.cm.req.ip_cm.minv": n(0), "infiniband.cm.req.ip_cm.ipv": n(4),
			"infiniband.cm.req.ip_cm.sport": n(0x9abc), "infiniband.cm.req.ip_cm.sip4": "10.9.0.1",
			"infiniband.cm.req.ip_cm.dip4":    "10.9.0.2",
			"infiniband.cm.req.ip_cm.private": hexes([]byte("hello"), REQPrivateData-CMAHeaderSize),
		}},
		{&REP{
			LocalCommID: 0x01020304, RemoteCommID: 0x05060708, LocalQKey: 0x11121314, LocalQPN: 0x151617, LocalEECN: 0x212223,
			StartingPSN: 0x242526, ResponderResources: 7, InitiatorDepth: 8, TargetACKDelay: 21, FailoverAccepted: 2,
			FlowControl: true, RNRRetryCount: 5, SRQ: true, LocalCAGUID: 0x3132333435363738, PrivateData: []byte("rep"),
		}, values{
			"infiniband.cm.rep": n(0x01020304), "infiniband.cm.rep.remotecommid": n(0x05060708),
			"infiniband.cm.rep.localqkey": n(0x11121314), "infiniband.cm.rep.localqpn": n(0x151617),
			"infiniband.cm.rep.localeecn": n(0x212223), "infiniband.cm.rep.startpsn": n(0x242526),
			"infiniband.cm.rep.respres": n(7), "infiniband.cm.rep.initdepth": n(8), "infiniband.cm.rep.tgtackdelay": n(21),
			"infiniband.cm.rep.failoveracc": n(2), "infiniband.cm.rep.e2eflowctrl": n(1),
			"infiniband.cm.rep.rnrretrcount": n(5), "infiniband.cm.rep.srq": n(1),
			"infiniband.cm.rep.localcaguid": n(0x3132333435363738), "infiniband.cm.rep.private": hexes([]byte("rep"), 196),
		}},
		{&RTU{LocalCommID: 1, RemoteCommID: 2, PrivateData: []byte("rtu")}, values{
			"infiniband.cm.rtu.localcommid": n(1), "infiniband.cm.rtu.remotecommid": n(2),
			"infiniband.cm.rtu.private": hexes([]byte("rtu"), 224),
		}},
		{&REJ{LocalCommID: 1, RemoteCommID: 2, Message: AnswersREP, Reason: RejConsumerDefined, Info: []byte("info"), PrivateData: []byte("rej")}, values{
			"infiniband.cm.rej.localcommid": n(1), "infiniband.cm.rej.remotecommid": n(2), "infiniband.cm.rej.msgrej": n(1),
			"infiniband.cm.rej.rejinfolen": n(4), "infiniband.cm.rej.reason": n(28),
			"infiniband.cm.rej.ari": hexes([]byte("info"), 72), "infiniband.cm.rej.private": hexes([]byte("rej"), 148),
		}},
		{&DREQ{LocalCommID: 1, RemoteCommID: 2, RemoteQPN: 0x030405, PrivateData: []byte("dreq")}, values{
			"infiniband.cm.dreq.localcommid": n(1), "infiniband.cm.dreq.remotecommid": n(2),
			"infiniband.cm.req.remoteqpneecn": n(0x030405), "infiniband.cm.dreq.private": hexes([]byte("dreq"), 220),
		}},
		{&DREP{LocalCommID: 1, RemoteCommID: 2, PrivateData: []byte("drep")}, values{
			"infiniband.cm.drsp.localcommid": n(1), "infiniband.cm.drsp.remotecommid": n(2),
			"infiniband.cm.drsp.private": hexes([]byte("drep"), 224),
		}},
		// Wireshark has no fields of these.
		{&MRA{LocalCommID: 1, RemoteCommID: 2, ServiceTimeout: 20}, nil},
		{&SIDRREQ{RequestID: 1, PKey: 0xffff, ServiceID: 0x0111<<16 | 7}, nil},
		{&SIDRREP{RequestID: 1, QPN: 5, QKey: 6}, nil},
	}
	fields := []string{
		"_ws.malformed", "infiniband.bth.destqp", "infiniband.deth.q_key", "infiniband.deth.srcqp",
		"infiniband.mad.baseversion", "infiniband.mad.mgmtclass", "infiniband.mad.classversion", "infiniband.mad.method",
		"infiniband.mad.status", "infiniband.mad.transactionid", "infiniband.mad.attributeid",
	}
	common := len(fields)
	for _, test := range tests {
		for f := range test.want {
			fields = append(fields, f)
		}
	}
	var packets [][]byte
	for i, test := range tests {
		h := sharkHeaders[0]
		p := &Packet{
			Opcode: UDSendOnly, PKey: DefaultPKey, DestQP: GSIQP, DETH: DETH{GSIQKey, GSIQP}, PSN: PSN(i),
			Payload: must(AppendCM(nil, 0x0102030405060700+uint64(i), test.message)),
		}
		packets = append(packets, h.datagram(h.flow().AppendICRC(p.Append(nil), h.id)))
	}
	lines := tshark(t, writePcap(t, packets), fields)
	if len(lines) != len(packets) {
		t.Fatalf("%d lines of %d packets", len(lines), len(packets))
	}
	for i, line := range lines {
		test := tests[i]
		if line[0] != "" {
			t.Errorf("%v: malformed: %q", test.message.Attr(), line)
		}
		for j, want := range []uint64{1, GSIQKey, 1, 1, 7, 2, 3, 0, 0x0102030405060700 + uint64(i), uint64(test.message.Attr())} {
			if got := number(t, line[1+j]); got != want {
				t.Errorf("%v: %s is %#x, not %#x", test.message.Attr(), fields[1+j], got, want)
			}
		}
		for j, f := range fields[common:] {
			got, want := line[common+j], test.want[f]
			if v, err := strconv.ParseUint(got, 0, 64); err == nil && strings.HasPrefix(got, "0x") {
				got = fmt.Sprint(v)
			}
			switch got {
			case "True":
				got = "1"
			case "False":
				got = "0"
			}
			if got != want {
				t.Errorf("%v: %s is %q, not %q", test.message.Attr(), f, line[common+j], want)
			}
		}
	}
	t.Logf("%d messages, %d fields", len(tests), len(fields))
}
