package rsock

import (
	"errors"
	"io"
	"net"
	"syscall"
	"testing"
)

// TestState compares what can be read and written with the states of both sides.
func TestState(t *testing.T) {
	failed := errors.New("failed")
	breach := protocolError("it does")
	for _, r := range []struct {
		state
		read, write   error
		over, ignores bool
	}{
		{state{open, open, nil}, nil, nil, false, false},
		{state{readEnded, open, nil}, io.EOF, nil, false, false},
		{state{writeEnded, open, nil}, nil, syscall.EPIPE, false, false},
		{state{bothEnded, open, nil}, io.EOF, syscall.EPIPE, false, false},
		{state{closed, open, nil}, net.ErrClosed, net.ErrClosed, false, false},
		{state{closed | bothEnded, bothEnded, failed}, net.ErrClosed, net.ErrClosed, true, true},
		{state{open, writeEnded, nil}, io.EOF, nil, false, false},
		{state{open, bothEnded, nil}, io.EOF, syscall.ECONNRESET, true, true},
		{state{readEnded, bothEnded, nil}, io.EOF, syscall.ECONNRESET, true, true},
		{state{writeEnded, bothEnded, nil}, io.EOF, syscall.EPIPE, true, true},
		{state{open, open, failed}, failed, failed, true, false},
		{state{open, open, breach}, breach, breach, true, true},
		{state{open, writeEnded, failed}, io.EOF, failed, true, false},
		{state{open, bothEnded, failed}, io.EOF, failed, true, true},
		{state{readEnded, open, failed}, io.EOF, failed, true, false},
		{state{writeEnded, open, failed}, failed, syscall.EPIPE, true, false},
	} {
		if err := r.readErr(); err != r.read {
			t.Errorf("%v: read: %v, want %v", r.state, err, r.read)
		}
		if err := r.writeErr(); err != r.write {
			t.Errorf("%v: write: %v, want %v", r.state, err, r.write)
		}
		if r.isOver() != r.over || r.ignoresMessages() != r.ignores {
			t.Errorf("%v: over %v, ignores messages %v", r.state, r.isOver(), r.ignoresMessages())
		}
	}
}
