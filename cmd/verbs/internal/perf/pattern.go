package perf

import (
	"encoding/binary"
	"fmt"

	"github.com/goverbs/verbs"
)

// patternLen is the length of the patterns of client and server, which differ. It is odd, so
// that misplaced data differs.
const patternLen = 251

func pattern(n int, client bool) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(i%patternLen + 1)
		if !client {
			b[i] = ^b[i]
		}
	}
	return b
}

// checkPattern returns an error with the first byte of b that differs from the pattern.
func checkPattern(b, pattern []byte) error {
	for i := range b {
		if b[i] != pattern[i] {
			return fmt.Errorf("byte %d is %#02x, not %#02x", i, b[i], pattern[i])
		}
	}
	return nil
}

// damage checks the data received in a run. It returns "" if all is correct.
func (s *session) damage(peerSent uint64) string {
	arrived := peerSent > 0 && !s.op.fetches
	switch {
	case s.op.opcode == verbs.OpRDMARead:
		arrived = s.posted() > 0
	case s.op.datagram:
		arrived = s.received() > 0 && len(s.queues) == 1
	}
	if !arrived {
		return ""
	}
	want := pattern(s.Size, !s.client)
	for i := range s.queues {
		in := s.in(i)
		if s.Mode == modeLat && s.Op == "write" {
			in = in[:len(in)-1] // the last byte counts messages
		}
		if err := checkPattern(in, want); err != nil {
			return fmt.Sprintf("QP %d: %v", i, err)
		}
	}
	return ""
}

// counted returns how many of the peer's messages this side knows about: those it has
// received, or for atomics the count in memory.
func (s *session) counted() uint64 {
	if !s.op.atomic {
		return s.received()
	}
	var n uint64
	for i := range s.queues {
		n += binary.NativeEndian.Uint64(s.in(i))
	}
	return n
}
