package scenario

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"time"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/internal/bridge"
	"github.com/goverbs/verbs/internal/endpoint"
	"github.com/goverbs/verbs/uverbs"
)

const (
	depth  = 16 // of the queues
	inline = 64
)

// Actor plays one of the two roles of a scenario. Its methods end the scenario when something is
// not as it must be.
type Actor struct {
	*endpoint.Local                 // once Play has made it
	Ctx             context.Context // ends the scenario
	Active          bool            // it sends, writes and reads
	Swap            endpoint.Swap

	seq  uint64 // of the last message, counted by both actors
	step string // of the scenario, for errors
}

// failure is what the methods of an actor panic with, to end the scenario.
type failure struct{ error }

// Must ends the scenario if there is an error.
func (a *Actor) Must(err error) {
	if err != nil {
		panic(failure{err})
	}
}

// Play makes the actor's objects, connects it and plays its role. It returns why the scenario has
// ended early; the error is [endpoint.ErrEnded] if that is for the other actor to say. The objects
// stay until Close, as the other actor may still need them.
func (a *Actor) Play(s *Scenario, port endpoint.Port) (err error) {
	defer func() {
		switch p := recover().(type) {
		case nil:
		case failure:
			if err = p.error; a.step != "" && !errors.Is(err, endpoint.ErrEnded) {
				err = fmt.Errorf("%s: %w", a.step, err)
			}
		default:
			panic(p)
		}
	}()
	a.open(&s.Options, port)
	s.Run(a)
	return nil
}

// Close closes the actor's objects.
func (a *Actor) Close() error {
	if a.Local == nil {
		return nil
	}
	return a.Local.Close()
}

func (a *Actor) open(o *Options, port endpoint.Port) {
	a.Must(o.Missing(port.Dev))
	sges := 2
	if o.MaxSGL {
		sges = math.MaxInt32 // of which each direction gets as many as the device has
	}
	limits := bridge.LimitCap(port.Dev, verbs.QPCap{MaxSendWR: depth, MaxRecvWR: depth, MaxInline: inline}, verbs.QPCap{MaxSendSGE: sges, MaxRecvSGE: sges})
	var err error
	a.Local, err = endpoint.New(port, endpoint.Options{
		Type: o.Type, CM: o.CM, Cap: limits, Depth: depth, Memory: o.Memory, Access: cmp.Or(o.Access, endpoint.RemoteAccess(port.Dev)) | o.Extra,
		SRQ: o.SRQ, Events: o.Events, OneCQ: o.OneCQ, RC: o.RC,
	})
	a.Must(err)
	a.Must(a.Connect(a.Ctx, a.Active, a.Swap))
	a.Sync() // both can receive
}

// Own ends the scenario if a constructor has failed, and else lets the actor close what it made.
func Own[T io.Closer](obj T, err error) func(*Actor) T {
	return func(a *Actor) T {
		obj, err := endpoint.Own(obj, err)(a.Local)
		a.Must(err)
		return obj
	}
}

// region allocates a memory region.
func (a *Actor) region(size int, access verbs.Access) *uverbs.MR {
	return Own(a.PD.AllocMR(size, access, uverbs.MROptions{}))(a)
}

// swap sends the other actor an address and returns the one it has sent.
func (a *Actor) swap(m endpoint.Address) endpoint.Address {
	m, err := a.Swap(m)
	a.Must(err)
	return m
}

// Sync waits until the other actor has come to the same point.
func (a *Actor) Sync() { a.swap(endpoint.Address{}) }

// Use lets both actors use other regions than before, or ones whose keys have changed.
func (a *Actor) Use(mr *uverbs.MR) {
	a.MR = mr
	m := a.swap(endpoint.Address{Addr: mr.Addr(), RKey: mr.RKey()})
	a.Remote.Addr, a.Remote.RKey = m.Addr, m.RKey
}

// wait waits for a completion that has no error.
func (a *Actor) wait(cq *uverbs.CQ) verbs.WC {
	wc, err := a.Wait(a.Ctx, cq)
	a.Must(err)
	return wc
}

// idle ends the scenario if there is a completion, which nothing accounts for.
func (a *Actor) idle(cq *uverbs.CQ) {
	var wc [1]verbs.WC
	if cq.Poll(wc[:]) > 0 {
		a.WCs = append(a.WCs, wc[0])
		a.Must(errors.New("there is a completion of a request that has none"))
	}
}

// send posts requests in one call.
func (a *Actor) send(wrs ...verbs.SendWR) {
	_, err := a.QP.PostSend(wrs...)
	a.Must(err)
}

// post posts requests in one call, of which the last is signaled, and waits for its completion.
func (a *Actor) post(wrs ...verbs.SendWR) { a.Must(a.Do(a.Ctx, wrs...)) }

// recv posts a receive for the pieces of memory.
func (a *Actor) recv(id uint64, sgl ...verbs.SGE) {
	_, err := a.PostRecv(verbs.RecvWR{ID: id, SGL: sgl})
	a.Must(err)
}

// completed waits for the completion of a request with an ID.
func (a *Actor) completed(id int) {
	if wc := a.wait(a.SendCQ); wc.ID != uint64(id) {
		a.Must(fmt.Errorf("completion of request %d, not %d", wc.ID, id))
	}
}

// received waits for a receive of n bytes.
func (a *Actor) received(id uint64, n int) verbs.WC {
	wc := a.wait(a.RecvCQ)
	if wc.ID != id || int(wc.ByteLen) != n || wc.QPNum != a.QP.Num() {
		a.Must(fmt.Errorf("receive %d of %d bytes on QP %d has completed, not %d of %d on %d", wc.ID, wc.ByteLen, wc.QPNum, id, n, a.QP.Num()))
	}
	return wc
}

// scatter returns n bytes of memory in so many pieces, with gaps between them. The actors divide them
// in other places.
func (a *Actor) scatter(n, pieces int) (sgl []verbs.SGE) {
	for at := 0; n > 0; pieces-- {
		part := n / pieces
		if a.Active && pieces > 1 {
			part = max(1, part/2)
		}
		sgl = append(sgl, a.MR.SGE(at, part))
		n, at = n-part, at+part+64
	}
	return sgl
}

// fill makes the data of the next message.
func (a *Actor) fill(sgl ...verbs.SGE) {
	a.seq++
	a.Fill(a.seq, sgl...)
}

// compare checks the data of the next message.
func (a *Actor) compare(sgl ...verbs.SGE) {
	a.seq++
	a.Must(a.Compare(a.seq, sgl...))
}

// message sends n bytes from the active actor, which change may alter, in pieces, and checks them
// at the other one, whose completion it returns.
func (a *Actor) message(n, pieces int, change func(*verbs.SendWR)) (wc verbs.WC) {
	sgl := a.scatter(n, pieces)
	if a.Active {
		a.fill(sgl...)
		a.Sync()
		wr := verbs.SendWR{Opcode: verbs.OpSend, SGL: sgl, To: a.To}
		if change != nil {
			change(&wr)
		}
		a.post(wr)
		return wc
	}
	a.recv(1, sgl...)
	a.Sync()
	wc = a.received(1, n)
	a.compare(sgl...)
	return wc
}

// Turns sends messages of n bytes in turns, and checks them.
func (a *Actor) Turns(rounds, n int) {
	for i := range 2 * rounds {
		a.step = fmt.Sprintf("message %d", i)
		a.message(n, 1, nil)
		a.Active = !a.Active
	}
	a.step = ""
}

// Write writes n bytes with a key, and then sends an empty message: when it has come, the data has
// come, also on iWARP, where a write completes when it has been sent.
func (a *Actor) Write(key uint32, n int) {
	sgl := a.scatter(n, 1)
	if a.Active {
		a.fill(sgl...)
		a.Sync()
		a.post(a.Request(verbs.OpRDMAWrite, key, sgl...), verbs.SendWR{Opcode: verbs.OpSend})
		return
	}
	a.recv(2)
	a.Sync()
	a.received(2, 0)
	a.compare(sgl...)
}

// Read reads n bytes with a key.
func (a *Actor) Read(key uint32, n int) {
	sgl := a.scatter(n, 1)
	if !a.Active {
		a.fill(sgl...)
		a.Sync()
		a.Sync() // has been read
		return
	}
	a.Sync()
	a.post(a.Request(verbs.OpRDMARead, key, sgl...))
	a.compare(sgl...)
	a.Sync()
}

// atomics changes the passive actor's word, which is 5 at first, by requests that have their
// opcodes and operands. It checks what the word was before each, and what it is in the end.
func (a *Actor) atomics(last uint64, wrs ...verbs.SendWR) {
	word := a.MR.Bytes()[:8]
	if !a.Active {
		binary.NativeEndian.PutUint64(word, 5)
		a.Sync()
		a.Sync()
		if is := binary.NativeEndian.Uint64(word); is != last {
			a.Must(fmt.Errorf("the word is %d in the end, not %d", is, last))
		}
		return
	}
	a.Sync()
	want := uint64(5)
	for _, wr := range wrs {
		wr.RemoteAddr, wr.RKey, wr.SGL = a.Remote.Addr, a.Remote.RKey, []verbs.SGE{a.MR.SGE(0, 8)}
		a.post(wr)
		if was := binary.NativeEndian.Uint64(word); was != want {
			a.Must(fmt.Errorf("the word was %d, not %d", was, want))
		}
		switch {
		case wr.Opcode == verbs.OpFetchAdd:
			want += wr.Args.CompareAdd
		case wr.Args.CompareAdd == want:
			want = wr.Args.Swap
		}
	}
	a.Sync()
}

// refused posts a request that the other actor's QP has to refuse, or with [verbs.WCLocProtErr] this
// one. The other actor's QP is then in the error state too, and flushes its receive.
func (a *Actor) refused(wr verbs.SendWR, want verbs.WCStatus, or ...verbs.WCStatus) {
	if !a.Active {
		a.recv(3)
	}
	a.ended(wr, append([]verbs.WCStatus{want}, or...)...)
	if !a.Active && want != verbs.WCLocProtErr {
		a.fails(a.RecvCQ, "the receive", nil, verbs.WCFlushErr)
	}
}

// ended posts a request that ends the connection, with one of the statuses, and another one behind
// it, which is flushed.
func (a *Actor) ended(wr verbs.SendWR, want ...verbs.WCStatus) {
	a.Sync()
	if a.Active {
		wr.Flags |= verbs.SendSignaled
		behind, flushed := verbs.SendWR{Opcode: verbs.OpSend, Flags: verbs.SendSignaled}, []verbs.WCStatus{verbs.WCFlushErr}
		if a.IWARP() {
			// WRITEs and SENDs complete when they have been sent. The peer may take the one behind
			// before it refuses, and its Terminate ends the QP with requests in it: one that siw is
			// sending then fails itself (siw_qp_sq_process), as the one behind may.
			flushed = append(flushed, verbs.WCLocQPOpErr)
			want = append(want, verbs.WCGeneralErr, verbs.WCFlushErr, verbs.WCLocQPOpErr)
			a.send(wr)
			a.fails(a.SendCQ, "the request", &wr, want...)
			a.send(behind)
		} else {
			a.send(wr, behind)
			a.fails(a.SendCQ, "the request", nil, want...)
		}
		a.fails(a.SendCQ, "the request behind it", nil, flushed...)
	}
	a.Sync()
}

// fails waits for a completion with one of the statuses. It posts again, if that is not nil, as long
// as requests succeed.
func (a *Actor) fails(cq *uverbs.CQ, what string, again *verbs.SendWR, want ...verbs.WCStatus) {
	_, err := a.Wait(a.Ctx, cq)
	for tries := 0; err == nil && again != nil && tries < 100; tries++ {
		time.Sleep(10 * time.Millisecond)
		a.send(*again)
		_, err = a.Wait(a.Ctx, cq)
	}
	wc, is := errors.AsType[*verbs.WCError](err)
	switch {
	case is && slices.Contains(want, wc.Status):
	case err == nil:
		a.Must(fmt.Errorf("%s succeeded; its status should be %q", what, want[0].String()))
	default:
		a.Must(fmt.Errorf("%s: %w; its status should be %q", what, err, want[0].String()))
	}
}

// bind binds a window of a type to the passive actor's memory, and tells the active one its key.
func (a *Actor) bind(typ verbs.MWType, n int) (mw *uverbs.MW, key uint32) {
	var m endpoint.Address
	if !a.Active {
		mw = Own(a.PD.AllocMW(typ))(a)
		a.rebind(mw, uverbs.BindOptions{MR: a.MR, Length: n, Access: verbs.AccessRemoteWrite | verbs.AccessRemoteRead})
		if m.RKey = mw.RKey(); m.RKey == a.MR.RKey() {
			a.Must(fmt.Errorf("the window has the region's key %#x", m.RKey))
		}
	}
	if remote := a.swap(m); a.Active {
		m = remote
	}
	return mw, m.RKey
}

func (a *Actor) rebind(mw *uverbs.MW, o uverbs.BindOptions) {
	o.Flags = verbs.SendSignaled
	_, err := a.QP.BindMW(mw, o)
	a.Must(err)
	if wc := a.wait(a.SendCQ); wc.Opcode != verbs.WCBindMW {
		a.Must(fmt.Errorf("%v has completed, not the bind", wc.Opcode))
	}
}
