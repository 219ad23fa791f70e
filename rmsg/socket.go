package rmsg

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/cm"
	"github.com/goverbs/verbs/uverbs"
)

// State is the state of a socket.
type State int

const (
	Connecting State = iota
	Established
	Disconnecting // messages posted before are still sent and received
	Disconnected
)

func (s State) String() string {
	names := [...]string{"connecting", "established", "disconnecting", "disconnected"}
	if s < 0 || int(s) >= len(names) {
		return "unknown"
	}
	return names[s]
}

// Socket is one end of a connection that carries messages in order. Its methods may be
// called by several goroutines. Its memory is released when it has ended and its buffers
// have been freed.
type Socket struct {
	// Value is for the program's use.
	Value any

	l             *Loop
	id            uint32
	addr          string // of the peer, for errors
	dialed        bool
	ctx           context.Context // done when the socket must end
	cancel        context.CancelFunc
	establishedCh chan struct{} // closed when it is established
	done          chan struct{} // closed when it has ended

	// Set before there can be completions.
	arena *arena
	shard *shard
	qp    *uverbs.QP
	conn  ConnOptions

	origin *origin // its dialer or listener

	mu       sync.Mutex
	state    State
	endpoint *cm.Endpoint
	stats    SocketStats // only the counters
	ending
	local, remote cm.Addr
	peer          hello
	helloReceived bool // the peer's hello frame has arrived

	out sender
	in  receiver
}

func newSocket(l *Loop, addr string, dialed bool, conn ConnOptions) *Socket {
	s := &Socket{
		l: l, addr: addr, dialed: dialed, conn: conn, establishedCh: make(chan struct{}), done: make(chan struct{}),
	}
	s.ctx, s.cancel = context.WithCancel(l.ctx)
	s.out.init(s, l.opt.SendQueue)
	s.in.init(s, l.opt.Credits)
	return s
}

// start registers the socket and starts to connect.
func (s *Socket) start(o *origin, connect connector) error {
	l := s.l
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.in(closing) {
		s.cancel()
		return verbs.ErrClosed
	}
	for s.id == 0 || l.sockets[s.id] != nil {
		l.lastID++
		s.id = l.lastID
	}
	l.sockets[s.id] = s
	s.origin = o
	o.sockets.Add(s)
	l.tasks.Go(func() { s.run(connect) })
	return nil
}

// State returns the state of the socket.
func (s *Socket) State() State {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.state
}

// Done returns a channel that is closed when the socket has ended, after all callbacks
// except Disconnected.
func (s *Socket) Done() <-chan struct{} { return s.done }

// Err returns why the socket ended, or nil before: [verbs.ErrClosed] after Close and
// Disconnect, io.EOF if the peer called Disconnect, and otherwise the error that ended
// it.
func (s *Socket) Err() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.state != Disconnected {
		return nil
	}
	return s.err
}

// LocalAddr and RemoteAddr return the addresses of the connection, once it is established.
func (s *Socket) LocalAddr() cm.Addr {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.local
}

func (s *Socket) RemoteAddr() cm.Addr {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.remote
}

// PrivateData returns the private data of the peer's program, once the socket is
// established.
func (s *Socket) PrivateData() []byte {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.peer.private
}

// MaxMessage returns the size in bytes of the largest message that the peer accepts, once
// the socket is established.
func (s *Socket) MaxMessage() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return int(s.peer.max)
}

// Loop returns the loop of the socket.
func (s *Socket) Loop() *Loop { return s.l }

// Endpoint returns the underlying connection of the socket: its device, QP, PD and
// addresses. It is nil until the socket has a QP, and closed when the socket has ended.
// It is for queries: the program must not close it, post to its QP or modify it, or poll
// its CQs, which other sockets share. Memory regions that the program registers in the PD
// must be closed before the socket ends; otherwise PD and device stay open.
func (s *Socket) Endpoint() *cm.Endpoint {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.endpoint
}

func (s *Socket) String() string { return fmt.Sprintf("socket to %s", s.addr) }

// Disconnect ends the connection gracefully: all messages posted on both sides are sent,
// read and acknowledged before Disconnected is called. This side can post no more, and
// soon the peer cannot either. Options.Linger bounds the time that this takes if the peer
// does not free its messages.
func (s *Socket) Disconnect() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.err != nil || s.state == Disconnected:
		return nil
	case s.state == Connecting:
		s.fail(verbs.ErrClosed)
		return nil
	case s.state == Established:
		s.startDisconnect(verbs.ErrClosed)
	}
	return nil
}

// startDisconnect starts to disconnect. A peer that has all may leave without a sign: the
// network may lose the message that ends the connection, which is sent once. goodEnd is
// [verbs.ErrClosed] if this side disconnects, and io.EOF if the peer does.
func (s *Socket) startDisconnect(goodEnd error) {
	s.state, s.goodEnd = Disconnecting, goodEnd
	s.linger = s.failAfter(s.l.opt.Linger, func() error {
		if s.byeDelivered {
			return s.goodEnd
		}
		return fmt.Errorf("disconnect: %w", ErrTimeout)
	})
	s.progress()
}

func (s *Socket) failAfter(d time.Duration, reason func() error) *time.Timer {
	return time.AfterFunc(d, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.fail(reason())
	})
}

// Close ends the connection immediately. Queued messages fail; received messages that
// were not taken are dropped. The loop calls Disconnected when the socket has ended.
func (s *Socket) Close() error {
	if s == nil {
		return verbs.ErrClosed
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	s.fail(verbs.ErrClosed)
	if s.state == Disconnected {
		s.in.trim(true)
	}
	return nil
}

// fail starts the end of the socket. Only the first reason is recorded.
func (s *Socket) fail(err error) {
	if s.err == nil {
		s.err = err
		s.cancel()
	}
}

// sendBye says bye, or answers it, when no messages are left, and ends the connection when that is
// for this side to do.
func (s *Socket) sendBye() {
	if s.state != Disconnecting || s.err != nil || s.out.pending > 0 {
		return
	}
	if s.bye.ends(s.dialed) {
		s.fail(s.goodEnd)
		return
	}
	next := byeSteps[s.bye].say
	if next == byeNone {
		return
	}
	f, r := s.in.frame(kindBye), reqAnnounce
	if s.bye.heard() {
		f.flags, r = flagByeAnswer, reqByeAnswer
	}
	if s.out.postFrame(&f, r) {
		s.bye = next
	}
}

// progress sends, reads, acknowledges and disconnects as far as is now possible.
func (s *Socket) progress() {
	if s.err != nil || s.state == Connecting {
		return
	}
	s.out.flush()
	s.in.postReads()
	s.in.flushAck()
	s.sendBye()
}

// handleEnd handles the end of a socket: it returns the buffers to the program. If a
// callback panics, the next Dispatch runs the others.
func (l *Loop) handleEnd(s *Socket, why error) {
	s.mu.Lock()
	for _, t := range []*time.Timer{s.linger, s.flushed} {
		if t != nil {
			t.Stop()
		}
	}
	if s.err == nil {
		if s.bye.heard() {
			why = s.goodEnd
		}
		s.err = why
	}
	if s.state == Connecting {
		s.origin.failed.Add(1)
	}
	s.state = Disconnected
	s.out.failAll()
	s.in.trim(s.closed)
	s.in.moveToHeap()
	s.origin.sockets.Remove(s, s.stats)
	s.mu.Unlock()
	l.mu.Lock()
	delete(l.sockets, s.id)
	l.mu.Unlock()
	s.cancel()
	l.work.due = s
	l.runCallbacks()
}

// notifyDisconnected reports the end of the socket to the program.
func (l *Loop) notifyDisconnected(s *Socket) {
	close(s.done)
	defer l.closeUnused()
	err, level := s.Err(), slog.LevelDebug
	if errors.Is(err, ErrProtocol) || errors.Is(err, ErrTimeout) || errors.Is(err, ErrUnreadable) || errors.Is(err, ErrVersion) {
		level = slog.LevelWarn
	}
	l.logSocket(level, "socket disconnected", s, err)
	if l.opt.Callbacks.Disconnected != nil {
		l.beginCallback()
		l.opt.Callbacks.Disconnected(s, err)
	}
}

// release releases the CQ and the memory that the QP used.
func (s *Socket) release() {
	if s.shard != nil {
		s.shard.release()
	}
	if s.arena != nil {
		s.arena.release()
	}
}
