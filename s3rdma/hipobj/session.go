package hipobj

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/s3rdma"
	"github.com/goverbs/verbs/s3rdma/internal/peer"
	"github.com/goverbs/verbs/uverbs"
)

// Session is one transfer at a server. Its calls, in order:
//
//	Server.Prepare   GET: fill Bytes
//	Publish          the client has the session now, and sends READY
//	Move             the bytes are moved, or the session is closed; or ErrNotReady, and READY comes again
//	Commit           PUT: store Bytes
//	Close
//
// Who has called Prepare or Move may use Bytes until he closes the session, whatever else ends it.
type Session struct {
	Request
	Object  Object // of the store, for the program that has the session
	server  *Server
	id      string
	release func() // to the quota
	pd      *uverbs.PD
	mr      *uverbs.MR
	qp      *uverbs.QP
	local   verbs.QPAddr
	made    time.Time
	timer   *time.Timer
	life    context.Context // until the session ends
	end     context.CancelCauseFunc

	// Of the program that has the session, see state:
	connected bool
	moves     int

	mu    sync.Mutex
	state state
	since time.Time // of state
}

// Ready contains the parameters of READY: the client's queue pair and, for GET, its memory.
type Ready struct {
	QPNum uint32
	Addr  uint64
	RKey  uint32
}

// ErrNotReady is returned by [Session.Move] if the client's queue pair does not answer, or has no
// receive. The client may send READY again.
var ErrNotReady = errors.New("the client's queue pair is not ready")

// rnrTime is how long Move tries a client that has no receive yet: hipObject's test program posts
// it after READY, and the RNR retries of a queue pair last but 5 ms.
const rnrTime = time.Second

// make makes the session's objects.
func (x *Session) make() (err error) {
	access := verbs.AccessLocalWrite
	if x.Op == Put {
		access |= verbs.AccessRemoteWrite
	}
	x.id = newID()
	if x.pd, err = x.server.dev.AllocPD(); err != nil {
		return err
	}
	if x.mr, err = x.pd.AllocMR(int(x.Size), access, uverbs.MROptions{}); err != nil {
		return err
	}
	x.qp, err = x.pd.CreateQP(uverbs.QPOptions{Cap: verbs.QPCap{MaxSendWR: 1, MaxRecvWR: 1, MaxSendSGE: 1, MaxRecvSGE: 1}})
	if err != nil {
		return err
	}
	table, err := peer.Table(x.server.dev, x.server.opt.GID)
	if err != nil {
		return err
	}
	gid, err := peer.GID(table, x.Peer.GID)
	if err != nil {
		return badf("%v", err)
	}
	if x.local, err = x.qp.AddrOn(gid); err != nil || x.Peer.QPNum == 0 {
		return err
	}
	return x.connect()
}

// connect connects the queue pair to the client's, unless it is.
func (x *Session) connect() error {
	if x.connected {
		return nil
	}
	opt := x.server.opt.Connect
	opt.Access = 0
	if x.Op == Put {
		opt.Access = verbs.AccessRemoteWrite
	}
	if err := x.qp.Connect(x.local, x.Peer, opt); err != nil {
		return err
	}
	if x.Op == Put {
		if _, err := x.qp.PostRecv(verbs.RecvWR{}); err != nil {
			return err
		}
	}
	x.connected = true
	return nil
}

// ID returns 32 hexadecimal digits that name the session to its client.
func (x *Session) ID() string { return x.id }

// PSN returns that of the first packet that the server sends.
func (x *Session) PSN() uint32 { return x.local.PSN }

// Token returns the server's queue pair and, of a PUT, the memory that the client writes to.
func (x *Session) Token() s3rdma.QPToken {
	t := s3rdma.QPToken{QPNum: x.local.QPNum, GID: x.local.GID, Port: uint8(x.local.Port), LID: x.local.LID}
	if x.Op == Put {
		t.Addr, t.RKey, t.Size = x.mr.Addr(), x.mr.RKey(), uint64(x.Size)
	}
	return t
}

// Bytes returns the session's memory: that of a GET before Publish, to be filled, and that of a PUT
// after Move. At other times the client may be using it, and Bytes returns nil.
func (x *Session) Bytes() []byte {
	x.mu.Lock()
	defer x.mu.Unlock()
	switch x.state {
	case staging:
		if x.Op == Get {
			return x.mr.Bytes()
		}
	case moved, committed:
		if x.Op == Put {
			return x.mr.Bytes()
		}
	}
	return nil
}

// Publish lets READY use the session.
func (x *Session) Publish() error { return x.fire(publish) }

// Commit makes it too late to cancel the session: a PUT whose CANCEL has succeeded is not stored.
func (x *Session) Commit() error { return x.fire(commit) }

// Cancel ends the session: Move fails if it runs. Others who have the session close it.
func (x *Session) Cancel() error {
	err := x.fire(cancel)
	if err == nil {
		x.end(errCancelled)
	}
	return err
}

// expire cancels the session also if it is too late, for the contexts of those who have it.
func (x *Session) expire(why error) {
	x.end(why) // first, as the state that follows has a cause of its own
	x.fire(cancel)
}

// Close ends the session. Its memory is free, unless Move runs and will do that. It may be called
// again.
func (x *Session) Close() error {
	if x == nil {
		return verbs.ErrClosed
	}
	return x.fire(finish)
}

// Context returns a context that ends with ctx, or with the session: when it is cancelled, and by
// the deadlines.
func (x *Session) Context(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(ctx)
	stop := context.AfterFunc(x.life, func() { cancel(context.Cause(x.life)) })
	return ctx, func() {
		stop()
		cancel(nil)
	}
}

// fire changes the state, and frees the memory with the last one.
func (x *Session) fire(e event) error {
	x.mu.Lock()
	was := x.state
	next, err := was.after(e)
	if x.state = next; next != was {
		x.since = time.Now()
	}
	x.mu.Unlock()
	if next != closed || was == closed {
		if cause := context.Cause(x.life); err != nil && cause != nil {
			err = fmt.Errorf("%w: %w", err, cause)
		}
		return err
	}
	x.end(errCancelled)
	if x.timer != nil {
		x.timer.Stop()
	}
	// The queue pair first: its client has no access to what is freed. Some may not exist, or no more.
	for _, object := range []io.Closer{x.qp, x.mr, x.pd} {
		if cerr := object.Close(); !errors.Is(cerr, verbs.ErrClosed) {
			err = errors.Join(err, cerr)
		}
	}
	if err == nil { // else the device has the memory still, and the account as much less
		x.release()
	}
	x.server.forget(x)
	return err
}

// forget removes a session that has ended.
func (s *Server) forget(x *Session) {
	s.mu.Lock()
	delete(s.sessions, x.id)
	s.mu.Unlock()
	s.open.Done()
}

// Move transfers the bytes, with a client who is at peer now, and returns when the device has moved
// all of them. The queue pair of a PUT is destroyed by then. With an error that is no [ErrNotReady]
// or [ErrState] the session is closed. ctx ends the transfer; so do Cancel and the deadlines.
func (x *Session) Move(ctx context.Context, peer Ready) error {
	if err := x.fire(move); err != nil {
		return err
	}
	if x.moves++; x.moves == 1 { // not again: a client that is never ready ends as well
		x.timer.Reset(x.server.opt.MoveTime)
	}
	ctx, stop := x.Context(ctx)
	defer stop()
	err := x.transfer(ctx, peer)
	if errors.Is(err, verbs.WCRetryExcErr) || errors.Is(err, verbs.WCRNRRetryExcErr) {
		if reset := x.reset(); reset == nil {
			err = fmt.Errorf("%w: %w", ErrNotReady, err)
			return x.moved(again, err)
		}
	}
	if err == nil && x.Op == Put {
		// The client must not change what is checked and stored. In the error state rxe may still
		// execute the packet at hand (rxe_receiver): only destroying the queue pair waits for that.
		err = x.qp.Close()
	}
	if err != nil {
		return x.moved(fail, err)
	}
	return x.moved(done, nil)
}

// moved ends Move with an error, or that of what has ended the session.
func (x *Session) moved(e event, err error) error {
	x.fire(e)
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.state == closed && (err == nil || errors.Is(err, ErrNotReady)) {
		err = context.Cause(x.life)
	}
	x.server.count(func(st *Stats) {
		switch {
		case errors.Is(err, ErrNotReady): // READY may come again
		case err != nil:
			st.Failed++
		case x.Op == Put:
			st.Puts++
			st.PutBytes += uint64(x.Size)
		default:
			st.Gets++
			st.GetBytes += uint64(x.Size)
		}
	})
	return err
}

// reset makes the queue pair ready for another connect.
func (x *Session) reset() error {
	x.connected = false
	return x.qp.Modify(verbs.QPAttr{State: verbs.StateReset}, verbs.MaskState)
}

func (x *Session) transfer(ctx context.Context, peer Ready) error {
	if x.Peer.QPNum != 0 && x.Peer.QPNum != peer.QPNum || peer.QPNum == 0 || peer.QPNum > 1<<24-1 {
		return badf("READY has queue pair %#x, PREPARE had %#x", peer.QPNum, x.Peer.QPNum)
	}
	x.Peer.QPNum = peer.QPNum
	cq, until := x.qp.SendCQ(), time.Now().Add(rnrTime)
	for {
		if err := x.connect(); err != nil {
			return err
		}
		if x.Op == Get {
			_, err := x.qp.PostSend(verbs.SendWR{
				Opcode: verbs.OpRDMAWriteImm, Flags: verbs.SendSignaled, Imm: x.Cookie,
				RemoteAddr: peer.Addr, RKey: peer.RKey, SGL: []verbs.SGE{x.mr.SGE(0, x.mr.Len())},
			})
			if err != nil {
				return err
			}
		}
		wc, err := cq.Next(ctx)
		switch {
		case errors.Is(err, verbs.WCRNRRetryExcErr) && time.Now().Before(until):
			// The PSN is the old one: the client takes again what it has, and then the rest.
			if err := x.reset(); err != nil {
				return err
			}
			continue
		case err != nil:
			return err
		case x.Op == Put && (wc.Opcode != verbs.WCRecvRDMAImm || wc.Imm() != x.Cookie || int64(wc.ByteLen) != x.Size):
			return badf("the client has sent %v of %d bytes with immediate data %08x, want a WRITE of %d with %08x", wc.Opcode, wc.ByteLen, wc.Imm(), x.Size, x.Cookie)
		}
		return nil
	}
}
