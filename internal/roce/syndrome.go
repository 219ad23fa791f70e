package roce

import (
	"fmt"
	"time"
)

// Syndrome is what an AETH reports: a class in the upper 3 bits and a value in the lower 5 (IBA,
// 9.7.5.2):
//
//	7   6   5   4   3   2   1   0
//	│0  │0  │0  │ credits          │ ACK: receives that the responder has, encoded; 31: it does not say (9.7.7.2)
//	│0  │0  │1  │ timer            │ RNR NAK: how long the requester is to wait, encoded (9.7.5.2.8)
//	│0  │1  │1  │ code             │ NAK: why the request is refused (9.7.5.2.2)
type Syndrome uint8

// SyndromeClass is the class of a Syndrome.
type SyndromeClass uint8

const (
	ClassACK      SyndromeClass = 0x00
	ClassRNRNAK   SyndromeClass = 0x20 // receiver not ready
	ClassReserved SyndromeClass = 0x40
	ClassNAK      SyndromeClass = 0x60
)

// The syndromes with a fixed value. Others have an encoded credit count, see [Syndrome.Credits], or
// the timer of [RNRNAK].
const (
	// ACKUnlimited acknowledges without limiting the requests that follow.
	ACKUnlimited    Syndrome = 0x1f
	NAKSequence     Syndrome = 0x60 // PSN sequence error: the packet with the NAK's PSN is lost; the only NAK after which both go on
	NAKInvalid      Syndrome = 0x61 // invalid request: an operation, a length or a sequence that is not allowed
	NAKRemoteAccess Syndrome = 0x62 // remote access error: a key, a range or a right
	NAKRemoteOp     Syndrome = 0x63 // remote operational error: the responder has failed, not the request
	NAKInvalidRDReq Syndrome = 0x64 // invalid RD request: of reliable datagrams, which Linux does not have
)

// RNRNAK returns a negative acknowledgement that asks to wait, see [RNRDelay].
func RNRNAK(timer uint8) Syndrome { return Syndrome(ClassRNRNAK) | Syndrome(timer&0x1f) }

// Class returns the class of s. The uppermost bit is reserved and ignored.
func (s Syndrome) Class() SyndromeClass { return SyndromeClass(s & 0x60) }

// Value returns the value of s: an encoded credit count, an RNR timer or a NAK code.
func (s Syndrome) Value() uint8 { return uint8(s & 0x1f) }

// Credits returns how many receive requests the responder has: RC's end-to-end flow control, by
// which a requester holds SENDs back instead of having them refused (IBA, 9.7.7.2). limited is
// false if s sets no limit, as from a QP with an SRQ, whose receives others may take, or is no
// acknowledgement.
func (s Syndrome) Credits() (n int, limited bool) {
	if s.Class() != ClassACK || s.Value() == ACKUnlimited.Value() {
		return 0, false
	}
	return CreditCount(s.Value()), true
}

// CreditCount returns the count that a 5 bit credit code stands for. Code 31 stands for none.
func CreditCount(code uint8) int { return int(credits[code&0x1f]) }

// credits are steps of a half of a power of two, so that 5 bits reach to 32768.
var credits = [32]uint16{
	0, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192,
	256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096, 6144, 8192, 12288, 16384, 24576, 32768,
}

// RNRDelay returns how long a requester waits after an RNR NAK with this timer.
func RNRDelay(timer uint8) time.Duration {
	return time.Duration(rnrDelays[timer&0x1f]) * 10 * time.Microsecond
}

// rnrDelays is in units of 10 µs (IBA, table 45). Code 0 is the longest, not the shortest.
var rnrDelays = [32]uint32{
	65536, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192,
	256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096, 6144, 8192, 12288, 16384, 24576, 32768, 49152,
}

// Timeout returns 4.096 µs * 2^exp. Fields of 5 bits have times in this form: the local ACK timeout
// of a QP, for which 0 means no timeout (IBA, 9.7.6.1.3), and timeouts of the communication
// manager.
func Timeout(exp uint8) time.Duration { return 4096 * time.Nanosecond << (exp & 0x1f) }

func (s Syndrome) String() string {
	switch s.Class() {
	case ClassACK:
		if n, limited := s.Credits(); limited {
			return fmt.Sprintf("ACK credits %d", n)
		}
		return "ACK"
	case ClassRNRNAK:
		return fmt.Sprintf("RNR NAK %v", RNRDelay(s.Value()))
	case ClassNAK:
		if n := int(s.Value()); n < len(nakNames) {
			return "NAK " + nakNames[n]
		}
	}
	return fmt.Sprintf("syndrome %#02x", uint8(s))
}

var nakNames = [...]string{"sequence error", "invalid request", "remote access error", "remote operational error", "invalid RD request"}
