package roce

import (
	"strings"
	"testing"
)

func TestString(t *testing.T) {
	for _, test := range []struct {
		packet Packet
		want   string
	}{
		{
			Packet{Opcode: RCWriteFirst, PKey: DefaultPKey, DestQP: 0x11, PSN: 5, AckReq: true, RETH: RETH{0x7f00, 0x204, 4096}, Payload: make([]byte, 1024)},
			"RC WRITE_FIRST qp 0x11 psn 5 ackreq va 0x7f00 rkey 0x204 len 4096 + 1024 bytes",
		},
		{
			Packet{Opcode: RCAcknowledge, PKey: DefaultPKey, DestQP: 0x12, PSN: 7, AETH: AETH{NAKRemoteAccess, 3}},
			"RC ACKNOWLEDGE qp 0x12 psn 7 NAK remote access error msn 3",
		},
		{
			Packet{Opcode: RCCompareSwap, PKey: 1, DestQP: 1, Solicited: true, Migrated: true, FECN: true, BECN: true, Atomic: AtomicETH{0x10, 2, 3, 4}},
			"RC COMPARE_SWAP qp 0x1 psn 0 solicited migrated fecn becn pkey 0x1 va 0x10 rkey 0x2 compare 0x4 swap 0x3",
		},
		{
			Packet{Opcode: RCFetchAdd, PKey: DefaultPKey, DestQP: 1, Atomic: AtomicETH{0x10, 2, 3, 0}},
			"RC FETCH_ADD qp 0x1 psn 0 va 0x10 rkey 0x2 add 0x3",
		},
		{
			Packet{Opcode: RCAtomicAcknowledge, PKey: DefaultPKey, DestQP: 1, AETH: AETH{ACKUnlimited, 1}, Orig: 9},
			"RC ATOMIC_ACKNOWLEDGE qp 0x1 psn 0 ACK msn 1 was 0x9",
		},
		{
			Packet{Opcode: RCFlush, PKey: DefaultPKey, DestQP: 1, FETH: FETH{3, 1}, RETH: RETH{1, 2, 3}},
			"RC FLUSH qp 0x1 psn 0 placement 0x3 selectivity 1 va 0x1 rkey 0x2 len 3",
		},
		{
			Packet{Opcode: RCSendLastInvalidate, PKey: DefaultPKey, DestQP: 1, IETH: 0x99, Payload: []byte{1}},
			"RC SEND_LAST_INVALIDATE qp 0x1 psn 0 invalidates 0x99 + 1 bytes",
		},
		{
			Packet{Opcode: Opcode(UC) | RCSendOnlyImm, PKey: DefaultPKey, DestQP: 2, Imm: [4]byte{0, 1, 2, 3}},
			"UC SEND_ONLY_IMM qp 0x2 psn 0 imm 0x00010203 + 0 bytes",
		},
		{
			Packet{Opcode: UDSendOnly, PKey: DefaultPKey, DestQP: GSIQP, DETH: DETH{GSIQKey, 1}, Payload: must(AppendCM(nil, 0, &SIDRREP{RequestID: 7}))},
			"UD SEND_ONLY qp 0x1 psn 0 qkey 0x80010000 from 0x1 + 256 bytes CM SIDR_REP id 00000007",
		},
		{
			Packet{Opcode: UDSendOnly, PKey: DefaultPKey, DestQP: GSIQP, DETH: DETH{GSIQKey, 1}, Payload: must(AppendCM(nil, 0, &REP{LocalCommID: 0x4dbc8962, RemoteCommID: 0xf1d6e5db}))},
			"UD SEND_ONLY qp 0x1 psn 0 qkey 0x80010000 from 0x1 + 256 bytes CM REP id 4dbc8962 to f1d6e5db",
		},
		{
			Packet{Opcode: UDSendOnly, PKey: DefaultPKey, DestQP: GSIQP, DETH: DETH{GSIQKey, 1}, Payload: make([]byte, MADSize)},
			"UD SEND_ONLY qp 0x1 psn 0 qkey 0x80010000 from 0x1 + 256 bytes MAD class 0x00",
		},
		{
			Packet{Opcode: UDSendOnly, PKey: DefaultPKey, DestQP: 5, Payload: must(AppendCM(nil, 0, &RTU{}))},
			"UD SEND_ONLY qp 0x5 psn 0 qkey 0x0 from 0x0 + 256 bytes",
		},
		{
			Packet{Opcode: 0x99, PKey: DefaultPKey},
			"opcode 0x99 qp 0x0 psn 0",
		},
	} {
		if got := test.packet.String(); got != test.want || strings.Contains(got, "\n") {
			t.Errorf("\n%s\n%s", got, test.want)
		}
	}
}
