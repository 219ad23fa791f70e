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
		life
		read, write   error
		over, ignores bool
	}{
		{life{local: open, peer: open, err: nil}, nil, nil, false, false},
		{life{local: readEnded, peer: open, err: nil}, io.EOF, nil, false, false},
		{life{local: writeEnded, peer: open, err: nil}, nil, syscall.EPIPE, false, false},
		{life{local: bothEnded, peer: open, err: nil}, io.EOF, syscall.EPIPE, false, false},
		{life{local: closed, peer: open, err: nil}, net.ErrClosed, net.ErrClosed, false, false},
		{life{local: closed | bothEnded, peer: bothEnded, err: failed}, net.ErrClosed, net.ErrClosed, true, true},
		{life{local: open, peer: writeEnded, err: nil}, io.EOF, nil, false, false},
		{life{local: open, peer: bothEnded, err: nil}, io.EOF, syscall.EPIPE, true, true},
		{life{local: readEnded, peer: bothEnded, err: nil}, io.EOF, syscall.EPIPE, true, true},
		{life{local: writeEnded, peer: bothEnded, err: nil}, io.EOF, syscall.EPIPE, true, true},
		{life{local: open, peer: open, err: failed}, failed, failed, true, false},
		{life{local: open, peer: open, err: breach}, breach, breach, true, true},
		{life{local: open, peer: writeEnded, err: failed}, io.EOF, failed, true, false},
		{life{local: open, peer: bothEnded, err: failed}, io.EOF, syscall.EPIPE, true, true},
		{life{local: readEnded, peer: open, err: failed}, io.EOF, failed, true, false},
		{life{local: writeEnded, peer: open, err: failed}, failed, syscall.EPIPE, true, false},
	} {
		if err := r.readErr(); err != r.read {
			t.Errorf("%v: read: %v, want %v", r.life, err, r.read)
		}
		if err := r.writeErr(); err != r.write {
			t.Errorf("%v: write: %v, want %v", r.life, err, r.write)
		}
		if r.isOver() != r.over || r.ignoresMessages() != r.ignores {
			t.Errorf("%v: over %v, ignores messages %v", r.life, r.isOver(), r.ignoresMessages())
		}
	}
}

// TestReport reports the reason why a connection ended, before and after others.
func TestReport(t *testing.T) {
	failed := errors.New("failed")
	s := life{err: failed}
	for _, test := range []struct {
		err  error
		want bool
	}{{nil, false}, {io.EOF, false}, {failed, true}, {nil, true}, {io.EOF, true}} {
		if err := s.report(test.err); err != test.err || s.reported != test.want {
			t.Errorf("report %v: %v, reported %v", test.err, err, s.reported)
		}
	}
}
