package s3rdma

import (
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/goverbs/verbs"
)

// Headers of requests and answers.
const (
	HeaderToken = "X-Amz-Rdma-Token"             // of a request: the client's memory
	HeaderReply = "X-Amz-Rdma-Reply"             // of an answer: 200, 204, 206, or 501 if the server has moved nothing
	HeaderBytes = "X-Amz-Rdma-Bytes-Transferred" // of an answer, decimal

	HeaderSession = "X-Amz-Rdma-Session" // of requests and answers below PathRC: the connection
	HeaderPSN     = "X-Amz-Rdma-Psn"     // of these: the first PSN of the sender, 6 hexadecimal digits, not 0
)

// Where clients connect for an [RCToken].
const (
	PathRC         = "/.s3rdma-rc/"
	PathConnect    = PathRC + "connect"
	PathDisconnect = PathRC + "disconnect"
)

// DefaultDCKey is the key of DC targets that cuObject's clients and servers use unless they are
// configured otherwise.
const DefaultDCKey = 0xffeeddcc

// MaxSize is the most bytes of one transfer by cuObject.
const MaxSize = 1 << 30

// DCToken is a client's memory and the DC target that leads to it, as cuObject 1.2 writes it:
// ADDR:SIZE:RKEY:LID:DCTN:G:GID, in lower-case hexadecimal digits of fixed widths. The DC key is not
// in it: both sides are configured alike.
type DCToken struct {
	Addr   uint64
	Size   uint32
	RKey   uint32
	LID    uint16
	QPNum  uint32 // of the DCT
	Global bool   // GID is valid
	GID    verbs.GID
}

// The widths are those of versitygw's and noobaa's sources, whose size has 8 digits: an operation has at
// most 1 GiB.
var dcWidths = [...]int{16, 8, 8, 4, 6, 1, 32}

const dcTokenLen = 16 + 8 + 8 + 4 + 6 + 1 + 32 + 6

// String returns the token as it is in [HeaderToken].
func (t DCToken) String() string {
	g := 0
	if t.Global {
		g = 1
	}
	return fmt.Sprintf("%016x:%08x:%08x:%04x:%06x:%x:%x", t.Addr, t.Size, t.RKey, t.LID, t.QPNum&0xffffff, g, t.GID[:])
}

// ParseDCToken parses a token of cuObject. Some clients append :ADDR:SIZE, a part of the memory, which
// is then what the result has.
func ParseDCToken(s string) (DCToken, error) {
	part, ok := "", len(s) > dcTokenLen && s[dcTokenLen] == ':'
	if ok {
		s, part = s[:dcTokenLen], s[dcTokenLen+1:]
	}
	fields := strings.Split(s, ":")
	if len(fields) != len(dcWidths) {
		return DCToken{}, fmt.Errorf("parse DC token: %d fields, want %d: ADDR:SIZE:RKEY:LID:DCTN:G:GID", len(fields), len(dcWidths))
	}
	var v [len(dcWidths) - 1]uint64
	for i, f := range fields {
		err := checkHex(f, dcWidths[i])
		if err == nil && i < len(v) {
			v[i], err = strconv.ParseUint(f, 16, 64)
		}
		if err != nil {
			return DCToken{}, fmt.Errorf("parse DC token: field %d: %w", i+1, err)
		}
	}
	if v[5] > 1 {
		return DCToken{}, fmt.Errorf("parse DC token: G is %d, want 0 or 1", v[5])
	}
	t := DCToken{Addr: v[0], Size: uint32(v[1]), RKey: uint32(v[2]), LID: uint16(v[3]), QPNum: uint32(v[4]), Global: v[5] == 1}
	hex.Decode(t.GID[:], []byte(fields[6]))
	if ok {
		a, n, _ := strings.Cut(part, ":")
		addr, err1 := parseHex(a, 64)
		size, err2 := parseHex(n, 32)
		if err := errors.Join(err1, err2); err != nil {
			return DCToken{}, fmt.Errorf("parse DC token: part of the memory: %w", err)
		}
		if addr < t.Addr || size > uint64(t.Size) || addr-t.Addr > uint64(t.Size)-size {
			return DCToken{}, fmt.Errorf("parse DC token: part of %d bytes at %#x is not in the memory of %d bytes at %#x: %w", size, addr, t.Size, t.Addr, verbs.ErrRange)
		}
		t.Addr, t.Size = addr, uint32(size)
	}
	if err := checkMemory(t.Addr, uint64(t.Size)); err != nil {
		return DCToken{}, fmt.Errorf("parse DC token: %w", err)
	}
	return t, nil
}

// checkMemory reports whether there are size bytes from addr on.
func checkMemory(addr, size uint64) error {
	if addr+size < addr {
		return fmt.Errorf("memory of %d bytes at %#x is beyond the last address: %w", size, addr, verbs.ErrRange)
	}
	return nil
}

// parseHex parses a hexadecimal number of at most so many bits, and of any width up to that.
func parseHex(s string, bits int) (uint64, error) {
	if len(s) > bits/4 || strings.Trim(s, "0123456789abcdefABCDEF") != "" {
		return 0, fmt.Errorf("%.40q, want 1 to %d hexadecimal digits", s, bits/4)
	}
	return strconv.ParseUint(s, 16, bits)
}

// checkHex reports whether s is width hexadecimal digits.
func checkHex(s string, width int) error {
	if len(s) != width || strings.Trim(s, "0123456789abcdefABCDEF") != "" {
		return fmt.Errorf("%.40q, want %d hexadecimal digits", s, width)
	}
	return nil
}

// RCToken is a client's memory and the connection that leads to it, as elbencho writes it:
// rc:CONNECTION:ADDR:SIZE:RKEY, where the server named the connection in its answer to [PathConnect].
type RCToken struct {
	Conn string // 32 hexadecimal digits
	Addr uint64
	Size uint64
	RKey uint32
}

const (
	rcPrefix  = "rc:"
	connIDLen = 32
)

// String returns the token as it is in [HeaderToken].
func (t RCToken) String() string {
	return fmt.Sprintf("%s%s:%016x:%08x:%08x", rcPrefix, t.Conn, t.Addr, t.Size, t.RKey)
}

// ParseRCToken parses a token of elbencho.
func ParseRCToken(s string) (t RCToken, err error) {
	fields := strings.Split(s, ":")
	if len(fields) != 5 || fields[0]+":" != rcPrefix {
		return t, fmt.Errorf("parse RC token: %.40q, want rc:CONNECTION:ADDR:SIZE:RKEY", s)
	}
	err = checkHex(fields[1], connIDLen)
	t.Conn = strings.ToLower(fields[1])
	var v [3]uint64
	for i, bits := range [...]int{64, 64, 32} {
		if err == nil {
			v[i], err = parseHex(fields[2+i], bits)
		}
	}
	t.Addr, t.Size, t.RKey = v[0], v[1], uint32(v[2])
	if err == nil {
		err = checkMemory(t.Addr, t.Size)
	}
	if err != nil {
		return RCToken{}, fmt.Errorf("parse RC token: %w", err)
	}
	return t, nil
}

// QPToken is a queue pair, and the memory that goes with it, as hipObject writes it: 44 bytes,
// little-endian, as 88 hexadecimal digits.
type QPToken struct {
	QPNum uint32
	GID   verbs.GID
	RKey  uint32
	Addr  uint64
	Size  uint64
	Port  uint8
	LID   uint16
}

const qpTokenSize = 44

// transportRC is the first byte of a QPToken. 0 is DC, which this token has no DC key for.
const transportRC = 1

func (t QPToken) String() string {
	b := append(make([]byte, 0, qpTokenSize), transportRC)
	b = binary.LittleEndian.AppendUint32(b, t.QPNum)
	b = append(b, t.GID[:]...)
	b = binary.LittleEndian.AppendUint32(b, t.RKey)
	b = binary.LittleEndian.AppendUint64(b, t.Addr)
	b = binary.LittleEndian.AppendUint64(b, t.Size)
	b = append(b, t.Port)
	return hex.EncodeToString(binary.LittleEndian.AppendUint16(b, t.LID))
}

// ParseQPToken parses a token of hipObject.
func ParseQPToken(s string) (QPToken, error) {
	if err := checkHex(s, 2*qpTokenSize); err != nil {
		return QPToken{}, fmt.Errorf("parse QP token: %w", err)
	}
	var b [qpTokenSize]byte
	hex.Decode(b[:], []byte(s))
	if b[0] != transportRC {
		return QPToken{}, fmt.Errorf("parse QP token: transport %d, want %d (RC)", b[0], transportRC)
	}
	le := binary.LittleEndian
	return QPToken{
		QPNum: le.Uint32(b[1:]), GID: verbs.GID(b[5:21]), RKey: le.Uint32(b[21:]), Addr: le.Uint64(b[25:]),
		Size: le.Uint64(b[33:]), Port: b[41], LID: le.Uint16(b[42:]),
	}, nil
}
