package rsock

import (
	"errors"
	"io"
	"net"
	"syscall"
)

// closeState is the set of directions that one side of a connection has ended:
//
//	     CloseWrite: SHUTDOWN           CloseRead: DISCONNECT
//	open ────────────────► writeEnded ──────────┐
//	 │                                          ▼         Close
//	 │ CloseRead                             bothEnded ─────────► closed
//	 │ (no message)              CloseWrite:    ▲
//	 └───────────────────► readEnded ───────────┘
//	                             DISCONNECT
//
// Close leads to closed from any state, and sends DISCONNECT if it was not sent before.
// The peer's state is known from its messages: open, writeEnded or bothEnded.
type closeState uint8

const (
	open       closeState = 0
	readEnded  closeState = 1
	writeEnded closeState = 2
	bothEnded             = readEnded | writeEnded
	closed     closeState = 4 // combined with the state before Close
)

func (s closeState) canRead() bool  { return s&(readEnded|closed) == 0 }
func (s closeState) canWrite() bool { return s&(writeEnded|closed) == 0 }

// life is how far the end of a connection has come, and the calls that keep its memory.
type life struct {
	local    closeState
	peer     closeState
	err      error // the connection has failed: nothing more can be sent
	unlogged bool  // err has not been logged yet
	reported bool  // Read or Write has returned it
	calls    int   // running calls: memory is released after the last
}

// begin starts a call, unless the connection is closed.
func (s *life) begin() bool {
	if s.isClosed() {
		return false
	}
	s.calls++
	return true
}

// end ends a call. It reports whether the call was the last one of a closed connection, and the
// error to log.
func (s *life) end() (last bool, failed error) {
	s.calls--
	if s.unlogged {
		s.unlogged, failed = false, s.err
	}
	return s.released(), failed
}

// fail records why the connection ends, and reports false if there was a reason before.
func (s *life) fail(err error) bool {
	if s.err != nil {
		return false
	}
	s.err, s.unlogged = err, true
	return true
}

// released reports whether the last call of a closed connection has ended, which releases the
// memory.
func (s *life) released() bool { return s.isClosed() && s.calls == 0 }

func (s *life) isClosed() bool { return s.local&closed != 0 }

// isOver reports whether messages can no longer be sent, or no longer matter.
func (s *life) isOver() bool { return s.err != nil || s.peer == bothEnded }

// ignoresMessages reports whether messages are no longer processed: there cannot be any, or the
// peer cannot be trusted. After other failures they are: data that has arrived before can still be
// read.
func (s *life) ignoresMessages() bool { return s.peer == bothEnded || errors.Is(s.err, ErrProtocol) }

// report records that a call of the program returns an error.
func (s *life) report(err error) error {
	s.reported = s.reported || err != nil && err == s.err
	return err
}

// readErr returns why no more data arrives, or nil if it may.
func (s *life) readErr() error {
	switch {
	case s.isClosed():
		return net.ErrClosed
	case !s.local.canRead(), !s.peer.canWrite():
		return io.EOF
	}
	return s.err
}

// writeErr returns why nothing can be written, or nil if writing is possible.
func (s *life) writeErr() error {
	switch {
	case s.isClosed():
		return net.ErrClosed
	case !s.local.canWrite(), !s.peer.canRead():
		return syscall.EPIPE
	}
	return s.err
}
