package hosts

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/cm"
	"github.com/goverbs/verbs/uverbs"
)

// cmLayer is cm and uverbs: messages that come back, one of them the sum of the
// server's memory, which the client writes, reads and counts in.
var cmLayer = layer{name: "cm", serve: serveCM, dial: dialCM, died: []error{
	verbs.WCRetryExcErr, verbs.WCFlushErr, verbs.WCLocQPOpErr, verbs.ErrDisconnected}}

// The memory of either side: what the client writes, what it reads, the counter,
// and a message each way.
const (
	room    = 256 << 10
	written = 0
	read    = room
	counter = 2 * room
	inbox   = counter + 8
	outbox  = inbox + message
	all     = outbox + message
	message = 32 << 10
)

// Messages begin with what the server is to do.
const (
	echo = 'e'
	sum  = 's' // and send the sum of what was written, of this length
)

// end is one end of such a connection.
type end struct {
	*cm.Endpoint
	mr     *uverbs.MR
	addr   uint64 // of the peer's memory
	key    uint32
	atomic bool
	count  uint64
}

func (e *end) options() cm.Options {
	return cm.Options{Setup: func(ep *cm.Endpoint) (err error) {
		e.Endpoint = ep
		access := verbs.AccessLocalWrite | verbs.AccessRemoteWrite | verbs.AccessRemoteRead
		if e.atomic = ep.PD.Context().Probe("atomics") == nil; e.atomic {
			access |= verbs.AccessRemoteAtomic
		}
		if e.mr, err = ep.AllocMR(all, access); err != nil {
			return err
		}
		hello := binary.BigEndian.AppendUint64(nil, e.mr.Addr())
		if err := ep.Announce(binary.BigEndian.AppendUint32(hello, e.mr.RKey())); err != nil {
			return err
		}
		return e.expect()
	}}
}

// expect posts the receive of a message.
func (e *end) expect() error {
	_, err := e.QP.PostRecv(verbs.RecvWR{SGL: []verbs.SGE{e.mr.SGE(inbox, message)}})
	return err
}

// do makes a request and waits for its completion.
func (e *end) do(ctx context.Context, wr verbs.SendWR, off, n int) error {
	wr.Flags, wr.SGL = verbs.SendSignaled, []verbs.SGE{e.mr.SGE(off, n)}
	if _, err := e.QP.PostSend(wr); err != nil {
		return err
	}
	_, err := completion(ctx, e.SendCQ)
	return err
}

func completion(ctx context.Context, cq *uverbs.CQ) (verbs.WC, error) {
	var wc [1]verbs.WC
	if _, err := cq.PollWait(ctx, wc[:]); err != nil {
		return wc[0], err
	}
	return wc[0], wc[0].Err()
}

// send sends a message.
func (e *end) send(ctx context.Context, b []byte) error {
	copy(e.mr.Bytes()[outbox:], b)
	return e.do(ctx, verbs.SendWR{Opcode: verbs.OpSend}, outbox, len(b))
}

// receive waits for a message, and expects another.
func (e *end) receive(ctx context.Context) ([]byte, error) {
	wc, err := completion(ctx, e.RecvCQ)
	if err != nil {
		return nil, err
	}
	b := append([]byte(nil), e.mr.Bytes()[inbox:inbox+wc.ByteLen]...)
	return b, e.expect()
}

func serveCM(ctx context.Context, addr string) (string, error) {
	l, err := cm.Listen(ctx, addr)
	if err != nil {
		return "", err
	}
	go func() {
		defer l.Close()
		listen(func() (*cm.Request, error) { return l.Accept(ctx) }, func(req *cm.Request) {
			var e end
			ep, err := req.Accept(ctx, e.options())
			if err != nil {
				return
			}
			defer ep.Close()
			for err == nil {
				err = e.answer(ctx)
			}
		})
	}()
	return l.Addr().String(), nil
}

// answer answers a message.
func (e *end) answer(ctx context.Context) error {
	b, err := e.receive(ctx)
	if err != nil {
		return err
	}
	if b[0] == sum {
		n := binary.BigEndian.Uint32(b[1:])
		b = binary.BigEndian.AppendUint32(nil, crc32.ChecksumIEEE(e.mr.Bytes()[written:][:n]))
	}
	return e.send(ctx, b)
}

func dialCM(ctx context.Context, addr string) (session, error) {
	var e end
	ep, err := (&cm.Dialer{Options: e.options()}).Dial(ctx, addr)
	if err != nil {
		return nil, err
	}
	e.addr, e.key = binary.BigEndian.Uint64(ep.PrivateData), binary.BigEndian.Uint32(ep.PrivateData[8:])
	return &e, nil
}

// poke writes nothing to the peer's memory.
func (e *end) poke() {
	e.QP.PostSend(verbs.SendWR{Opcode: verbs.OpRDMAWrite, RemoteAddr: e.addr, RKey: e.key})
}

func (e *end) Close() error { return e.Endpoint.Close() }

func (e *end) round(ctx context.Context, number, n int) error {
	n = min(n, room)
	mem := e.mr.Bytes()
	data := fill(mem[written:][:n], number)
	if err := e.do(ctx, verbs.SendWR{Opcode: verbs.OpRDMAWrite, RemoteAddr: e.addr + written, RKey: e.key}, written, n); err != nil {
		return fmt.Errorf("write: %w", err)
	}
	got, err := e.ask(ctx, binary.BigEndian.AppendUint32([]byte{sum}, uint32(n)))
	if err != nil {
		return fmt.Errorf("ask for the sum: %w", err)
	}
	if err := wrong("sum of what was written", got, binary.BigEndian.AppendUint32(nil, crc32.ChecksumIEEE(data))); err != nil {
		return err
	}
	clear(mem[read:][:n])
	// A byte more proves that rxe has done all of a READ, see verbs.OpRDMARead.
	fetch := verbs.SendWR{Opcode: verbs.OpRDMARead, RemoteAddr: e.addr + written, RKey: e.key}
	if err = e.do(ctx, fetch, read, n); err == nil {
		err = e.do(ctx, fetch, read, 1)
	}
	if err != nil {
		return fmt.Errorf("read: %w", err)
	}
	if err := wrong("what was read", mem[read:][:n], data); err != nil {
		return err
	}
	text := fill(make([]byte, min(n, message)), number+1)
	text[0] = echo
	if got, err = e.ask(ctx, text); err != nil {
		return fmt.Errorf("echo: %w", err)
	}
	if err := wrong("echo", got, text); err != nil || !e.atomic {
		return err
	}
	add := verbs.SendWR{Opcode: verbs.OpFetchAdd, RemoteAddr: e.addr + counter, RKey: e.key, CompareAdd: 3}
	if err := e.do(ctx, add, counter, 8); err != nil {
		return fmt.Errorf("fetch and add: %w", err)
	}
	if got := binary.NativeEndian.Uint64(mem[counter:]); got != e.count {
		return fmt.Errorf("%w: counter is %d, want %d", errData, got, e.count)
	}
	e.count += 3
	return nil
}

// ask sends a message and waits for the answer.
func (e *end) ask(ctx context.Context, b []byte) ([]byte, error) {
	if err := e.send(ctx, b); err != nil {
		return nil, err
	}
	b, err := e.receive(ctx)
	if err != nil && errors.Is(err, context.Canceled) {
		err = e.Err()
	}
	return b, err
}
