package hipobj

import (
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc64"
	"net/http"
	"strconv"
	"strings"

	"github.com/goverbs/verbs"
)

const (
	Protocol = "hipobj-rc-v2" // the value of the header x-amz-rdma-protocol
	Path     = "/.hipobj-rc/" // of the control endpoint, with prepare, ready or cancel behind it
	MaxSize  = 1<<31 - 1      // bytes of a transfer at most
	prefix   = "x-amz-rdma-"  // of all headers
	crcName  = "CRC64NVME "   // before the base64 of a checksum
	maxPSN   = 1<<24 - 1      // 0 is none
	maxText  = 2047           // of a target
	noStatus = "unsupported"  // the value of x-amz-rdma-protocol-status that sends clients to HTTP
	okReply  = "200:"         // before the server's token
)

// Op is what a transfer does.
type Op string

// The operations.
const (
	Get Op = "GET" // the server writes the client's memory
	Put Op = "PUT" // the client writes the server's memory
)

// Request contains the parameters of PREPARE.
type Request struct {
	Account      string // that has the session
	Op           Op
	Target       string       // /bucket/key, percent-encoded and maybe with a query, as the client has sent it
	Offset, Size int64        // of the bytes to move; PUT has no offset
	Cookie       uint32       // the immediate data of the transfer
	Peer         verbs.QPAddr // the client's queue pair; its number may be 0 until READY
}

// maxSize returns the most bytes of a transfer on a port. Where int has 32 bits, MaxMessage may be
// negative.
func maxSize(p *verbs.PortAttr) int64 { return min(MaxSize, int64(uint32(p.MaxMessage))) }

// check returns what is wrong with a request, of which the size is at most so many bytes.
func (r *Request) check(most int64) error {
	switch {
	case r.Op != Get && r.Op != Put:
		return badf("operation %.20q, want GET or PUT", r.Op)
	case len(r.Target) > maxText || !strings.HasPrefix(r.Target, "/"):
		return badf("target %.40q of %d bytes, want /bucket/key of at most %d", r.Target, len(r.Target), maxText)
	case r.Size == 0:
		return badf("size 0: use HTTP")
	case r.Size < 0 || r.Size > most:
		return &Error{http.StatusRequestEntityTooLarge, fmt.Sprintf("size %d, at most %d: use HTTP, or ranges", r.Size, most)}
	case r.Offset < 0 || r.Offset+r.Size < 0 || r.Op == Put && r.Offset != 0:
		return badf("%s of %d bytes from offset %d", r.Op, r.Size, r.Offset)
	case r.Peer.PSN == 0 || r.Peer.PSN > maxPSN:
		return badf("PSN %#x, want 1 to %#x", r.Peer.PSN, maxPSN)
	case r.Cookie == 0:
		return badf("cookie 0")
	}
	return nil
}

// Error is an error with an HTTP status: of a [Store], for the client, or of a server's answer.
type Error struct {
	Status int
	Text   string
}

func (e *Error) Error() string { return fmt.Sprintf("%s (HTTP status %d)", e.Text, e.Status) }

// badf returns the error of a request that no repetition mends.
func badf(format string, args ...any) error {
	return &Error{http.StatusBadRequest, fmt.Sprintf(format, args...)}
}

func get(h http.Header, name string) string { return h.Get(prefix + name) }
func set(h http.Header, name, value string) { h.Set(prefix+name, value) }

// numbers parses headers, and has the first error of them.
type numbers struct {
	h   http.Header
	err error
}

// get returns a number of at most so many bits.
func (n *numbers) get(name string, base, bits int) uint64 {
	s := get(n.h, name)
	v, err := strconv.ParseUint(s, base, bits)
	if err != nil {
		why := err
		if e, ok := errors.AsType[*strconv.NumError](err); ok {
			why = e.Err
		}
		n.fail("%s is %.40q, want a number of base %d and at most %d bits: %v", prefix+name, s, base, bits, why)
	}
	return v
}

// optional is get for a header that may be missing, which is 0 then.
func (n *numbers) optional(name string, base, bits int) uint64 {
	if get(n.h, name) == "" {
		return 0
	}
	return n.get(name, base, bits)
}

func (n *numbers) fail(format string, args ...any) {
	if n.err == nil {
		n.err = badf("header "+format, args...)
	}
}

// crcTable is of CRC-64/NVME, reflected (NVM Express NVM Command Set Specification, 64b CRC), which
// S3 has as CRC64NVME.
var crcTable = crc64.MakeTable(0x9a6c9329ac4bc9b5)

// checksum returns a checksum as the header has it.
func checksum(b []byte) string {
	return crcName + base64.StdEncoding.EncodeToString(binary.BigEndian.AppendUint64(nil, crc64.Checksum(b, crcTable)))
}
