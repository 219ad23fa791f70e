package perf

import (
	"bytes"
	"encoding/binary"
	"fmt"

	"github.com/goverbs/verbs"
)

// patternLen is the length of the patterns of client and server, which differ. It is odd, so
// that misplaced data differs.
const patternLen = 251

func pattern(client bool) []byte {
	b := make([]byte, patternLen)
	for i := range b {
		b[i] = byte(i + 1)
		if !client {
			b[i] = ^b[i]
		}
	}
	return b
}

func fillPattern(b []byte, client bool) {
	for p := pattern(client); len(b) > 0; {
		b = b[copy(b, p):]
	}
}

// checkPattern returns an error with the first byte of b that differs from the pattern.
func checkPattern(b []byte, client bool) error {
	p := pattern(client)
	for off := 0; off < len(b); off += patternLen {
		got := b[off:min(off+patternLen, len(b))]
		if bytes.Equal(got, p[:len(got)]) {
			continue
		}
		for i := range got {
			if got[i] != p[i] {
				return fmt.Errorf("byte %d is %#02x, not %#02x", off+i, got[i], p[i])
			}
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
		arrived = s.received() > 0 && len(s.lanes) == 1
	}
	if !arrived {
		return ""
	}
	for i := range s.lanes {
		in := s.in(i)
		if s.Mode == modeLat && s.Op == "write" {
			in = in[:len(in)-1] // the last byte counts messages
		}
		if err := checkPattern(in, !s.client); err != nil {
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
	for i := range s.lanes {
		n += binary.NativeEndian.Uint64(s.in(i))
	}
	return n
}
