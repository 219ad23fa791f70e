package s3rdma

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/uverbs"
)

// Remote is a client's memory, for one transfer, and what the server has for it: registered memory, a
// queue pair, and a part of the limits. These it has from the first [Remote.Move], [Remote.Reader] or
// [Remote.Writer] until [Remote.Commit] or [Remote.Close]. Commit before the answer is sent: the client
// uses its memory then. Always call Close. A call waits while another one runs.
type Remote struct {
	s    *Server
	peer Peer
	target

	mu      sync.Mutex
	state   state
	err     error // of failed
	lost    error // why nobody knows whether the device has done with the memory
	op      verbs.Opcode
	lane    *lane
	block   *uverbs.Block // of Reader and Writer
	lent    bool          // a call of the program uses the block
	release func()        // of the limits, and of Server.Close
	until   time.Time
	posted  int
	done    int   // requests that have completed
	bytes   int64 // of all requests
}

// target is what a token says.
type target struct {
	addr uint64
	size int64
	rkey uint32
	ends ends
	take func(context.Context) (*lane, error) // leads to it
}

// state is what a Remote may do.
type state uint8

const (
	stateReady     state = iota // it has nothing of the server
	stateMoving                 // it has a queue pair
	stateFailed                 // the queue pair is away, and the device has done with the memory
	stateCommitted              // all requests have completed, and the server has everything back
	stateClosed
)

// event is what changes the state.
type event uint8

const (
	eventMove event = iota
	eventFail
	eventCommit
	eventClose
)

// refused is the result of an event that changes nothing and is an error.
const refused = stateClosed + 1

// transitions has the state behind each event.
var transitions = [...][4]state{
	//                Move         Fail         Commit          Close
	stateReady:     {stateMoving, stateFailed, stateCommitted, stateClosed},
	stateMoving:    {stateMoving, stateFailed, stateCommitted, stateClosed},
	stateFailed:    {refused, stateFailed, refused, stateClosed},
	stateCommitted: {refused, stateCommitted, stateCommitted, stateClosed},
	stateClosed:    {refused, stateClosed, refused, refused},
}

var errCommitted = errors.New("the transfer is committed: a client's memory is used for one transfer of a token")

// late is why a context ends at a limit. Its text is made when it is read, as each wait has one.
type late struct {
	what  string
	limit time.Duration
}

func (l late) Error() string { return fmt.Sprintf("%s of %v: %v", l.what, l.limit, l.Unwrap()) }
func (late) Unwrap() error   { return context.DeadlineExceeded }

// step changes the state. A Remote that leaves stateMoving gives back what it has, and one that is
// closed its memory as well: until then a program may send it by HTTP.
func (r *Remote) step(e event) error {
	from, to := r.state, transitions[r.state][e]
	if to == refused {
		switch from {
		case stateFailed:
			return r.err
		case stateCommitted:
			return errCommitted
		}
		return verbs.ErrClosed
	}
	r.state = to
	if from == stateMoving && to != stateMoving && r.lane != nil {
		r.giveBack(to == stateFailed || r.posted > r.done)
	}
	if to == stateCommitted || to == stateClosed {
		r.free()
		if r.release != nil {
			r.release()
			r.release = nil
		}
	}
	return nil
}

// giveBack gives back the queue pair. A broken one comes to rest first.
func (r *Remote) giveBack(broken bool) {
	r.lane.transfer.Store(nil)
	if err := r.lane.put(broken, r.posted-r.done); err != nil {
		r.lost = fmt.Errorf("%w: end a queue pair: %w", ErrMemoryLost, err)
		r.s.opt.Logger.Error("s3rdma: memory is not used again", "account", r.peer.Account, "err", r.lost)
		r.block = nil
	}
	r.lane = nil
}

// free returns the memory, unless a call of the program has it just now.
func (r *Remote) free() {
	if r.block != nil && !r.lent && (r.state == stateCommitted || r.state == stateClosed) {
		r.block.Put()
		r.block = nil
	}
}

// lend calls the program with a part of the memory, and without mu: the call may take forever, and the
// end of the transfer must not wait for it.
func (r *Remote) lend(call func()) {
	r.lent = true
	r.mu.Unlock()
	defer func() {
		r.mu.Lock()
		r.lent = false
		r.free()
	}()
	call()
}

// Len returns the length of the client's memory.
func (r *Remote) Len() int64 { return r.size }

// reserve takes the limits, n bytes of memory unless n is 0, and a queue pair.
func (r *Remote) reserve(ctx context.Context, n int) error {
	if r.state == stateMoving {
		return nil
	}
	if err := r.step(eventMove); err != nil {
		return err
	}
	s := r.s
	ctx, cancel := context.WithTimeoutCause(ctx, s.opt.Limits.Wait, late{"nothing free within Limits.Wait", s.opt.Limits.Wait})
	defer cancel()
	err := s.enter()
	if err == nil {
		r.release = s.running.Done
		var release func()
		if release, err = s.transfers.Take(r.peer.Account, int64(n)); err == nil {
			r.release = func() {
				release()
				s.running.Done()
			}
		}
	}
	if err == nil && n > 0 {
		r.block, err = s.arena.Get(ctx, n)
	}
	reason := ReasonLimit
	if err == nil {
		r.until = time.Now().Add(s.opt.Limits.Time)
		if r.lane, err = r.take(ctx); err == nil {
			r.lane.transfer.Store(&transfer{r.ends, r.op, r.size, time.Now()})
		} else if ctx.Err() == nil {
			reason = ReasonFailed
		}
	}
	if err != nil {
		r.err = s.decline(r.peer, reason, err)
		r.step(eventFail)
	}
	return r.err
}

// post posts the RDMA operation for the client's memory from off on. It does not wait.
func (r *Remote) post(sge verbs.SGE, off int64) error {
	if err := r.step(eventMove); err != nil {
		return err
	}
	if n := int64(sge.Length); off < 0 || n > r.size-off {
		return fmt.Errorf("move %d bytes at %d of the client's %d: %w", n, off, r.size, verbs.ErrRange)
	}
	if err := r.send(sge, off); err != nil {
		return err
	}
	r.bytes += int64(sge.Length)
	return nil
}

func (r *Remote) send(sge verbs.SGE, off int64) error {
	wr := verbs.SendWR{Opcode: r.op, Flags: verbs.SendSignaled, To: r.lane.to, RemoteAddr: r.addr + uint64(off), RKey: r.rkey, SGL: []verbs.SGE{sge}}
	if _, err := r.lane.qp.PostSend(wr); err != nil {
		return r.fail(err)
	}
	r.posted++
	return nil
}

// prove follows the last READ on rxe, which takes an acknowledgement for the answer to a READ. One that comes
// late completes it without some of the bytes, and breaks the queue pair afterwards: the success of a
// later READ, of the first byte once more, proves it. A client may also send acknowledgements alone, so that
// the memory keeps what it had: [Remote.ring] clears it.
func (r *Remote) prove(sge verbs.SGE, off int64) error {
	if !r.s.rxe || r.op != verbs.OpRDMARead || sge.Length == 0 {
		return nil
	}
	sge.Length = 1
	return r.send(sge, off)
}

// wait waits until so many requests have completed.
func (r *Remote) wait(ctx context.Context, n int) error {
	if r.state != stateMoving {
		return r.step(eventMove)
	}
	if r.done >= n {
		return nil
	}
	ctx, cancel := context.WithDeadlineCause(ctx, r.until, late{"transfer took longer than Limits.Time", r.s.opt.Limits.Time})
	defer cancel()
	for r.done < n {
		err := r.lane.next(ctx)
		if err == nil || isCompletion(err) {
			r.done++
		}
		if err != nil {
			return r.fail(err)
		}
	}
	return nil
}

// fail ends the transfer.
func (r *Remote) fail(err error) error {
	op := "read"
	if r.op == verbs.OpRDMAWrite {
		op = "write"
	}
	r.err = fmt.Errorf("%s %d bytes of the client at %#x by key %#x: %w", op, r.size, r.addr, r.rkey, err)
	if r.lane != nil && r.lane.to.AH != 0 && errors.Is(err, verbs.WCRetryExcErr) {
		r.err = fmt.Errorf("%w: DC target %#x does not answer: the client has gone, or is configured with another DC key than Fabric.DCKey", r.err, r.lane.to.QPNum)
	}
	r.s.stats.failed.Add(1)
	r.s.opt.Logger.Warn("s3rdma: transfer failed", "account", r.peer.Account, "err", r.err)
	r.step(eventFail)
	if r.lost != nil {
		r.err = fmt.Errorf("%w: %w", r.err, r.lost)
	}
	return r.err
}

// start begins a transfer in one direction with n bytes of memory.
func (r *Remote) start(ctx context.Context, op verbs.Opcode, n int) error {
	if r.state == stateMoving && (r.op != op || n > 0 || r.block != nil) {
		return fmt.Errorf("the transfer has begun with %v: %w", r.op, verbs.ErrInUse)
	}
	r.op = op
	return r.reserve(ctx, n)
}

// Move moves bytes between the server's memory, which belongs to [Server.PD], and the client's memory
// from off on: op is [verbs.OpRDMARead] of the client's or [verbs.OpRDMAWrite]. It returns when the device
// has done with the memory, also with an error, but for one that matches [ErrMemoryLost]. One that matches
// [ErrDeclined] means that nothing was moved. On rxe a client can make a READ leave the memory as it was,
// without an error: clear what it must not get.
func (r *Remote) Move(ctx context.Context, op verbs.Opcode, mem verbs.SGE, off int64) error {
	if op != verbs.OpRDMARead && op != verbs.OpRDMAWrite {
		return fmt.Errorf("move with %v, want an RDMA READ or WRITE: %w", op, errors.ErrUnsupported)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	err := r.start(ctx, op, 0)
	if err == nil {
		err = r.post(mem, off)
	}
	if err == nil {
		err = r.prove(mem, off)
	}
	if err == nil {
		err = r.wait(ctx, r.posted)
	}
	return err
}

// Commit waits until the device has acknowledged every byte, and gives back what the transfer has. Then
// the server may answer. It may be called again.
func (r *Remote) Commit(ctx context.Context) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.commit(ctx)
}

func (r *Remote) commit(ctx context.Context) error {
	if r.state == stateMoving {
		if err := r.wait(ctx, r.posted); err != nil {
			return err
		}
	}
	first := r.state < stateCommitted
	err := r.step(eventCommit)
	if err == nil && first && r.op != 0 {
		r.s.stats.moved(r.op, r.bytes)
	}
	return err
}

// Close ends the transfer. If it is not committed, the client's memory has undefined contents. When Close
// returns, the device uses neither memory any more, unless the error matches [ErrMemoryLost].
func (r *Remote) Close() error {
	if r == nil {
		return verbs.ErrClosed
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	return cmp.Or(r.step(eventClose), r.lost)
}
