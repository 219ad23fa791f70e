package rsock

import (
	"errors"
	"io"
	"net"
	"syscall"
)

// side is how far one side of a connection has ended it:
//
//	     CloseWrite: SHUTDOWN           CloseRead: DISCONNECT
//	open ────────────────► writeEnded ──────────┐
//	 │                                          ▼         Close
//	 │ CloseRead                             bothEnded ─────────► closed
//	 │ (no message)              CloseWrite:    ▲
//	 └───────────────────► readEnded ───────────┘
//	                             DISCONNECT
//
// Close leads to closed from everywhere, and sends DISCONNECT if that was not sent. Of
// the peer, which is known by its messages, the states are open, writeEnded and bothEnded.
type side uint8

const (
	open       side = 0
	readEnded  side = 1
	writeEnded side = 2
	bothEnded  side = readEnded | writeEnded
	closed     side = 4 // or 4 and one of the others, as before Close
)

func (s side) canRead() bool  { return s&(readEnded|closed) == 0 }
func (s side) canWrite() bool { return s&(writeEnded|closed) == 0 }

// state is what has ended of a connection.
type state struct {
	local side
	peer  side
	err   error // the connection has failed: nothing more can be sent
}

func (s *state) isClosed() bool { return s.local&closed != 0 }

// isOver reports whether messages can no longer be sent, or no longer matter.
func (s *state) isOver() bool { return s.err != nil || s.peer == bothEnded }

// isDeaf reports whether messages are no longer taken: there cannot be any, or the peer
// cannot be trusted.
func (s *state) isDeaf() bool { return s.peer == bothEnded || errors.Is(s.err, ErrProtocol) }

// readErr returns why no more data comes, nil if it may.
func (s *state) readErr() error {
	switch {
	case s.isClosed():
		return net.ErrClosed
	case !s.local.canRead(), !s.peer.canWrite():
		return io.EOF
	}
	return s.err
}

// writeErr returns why nothing can be written, nil if it can.
func (s *state) writeErr() error {
	switch {
	case s.isClosed():
		return net.ErrClosed
	case !s.local.canWrite():
		return syscall.EPIPE
	case s.err != nil:
		return s.err
	case !s.peer.canRead():
		return syscall.ECONNRESET
	}
	return nil
}
