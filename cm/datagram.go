package cm

import (
	"cmp"
	"context"
	"fmt"
	"sync"

	"github.com/goverbs/verbs/uverbs"
)

// startUD moves a datagram QP, which needs no peer, to RTS.
func (e *Endpoint) startUD() error {
	if err := e.QP.Modify(uverbs.QPAttr{State: uverbs.StateRTR}, uverbs.MaskState); err != nil {
		return err
	}
	return e.QP.Modify(uverbs.QPAttr{State: uverbs.StateRTS}, uverbs.MaskState|uverbs.MaskSQPSN)
}

// sendTo makes the peer that an event tells of the endpoint's.
func (e *Endpoint) sendTo(ev Event) error {
	ah, err := e.PD.CreateAH(ev.AV)
	if err != nil {
		return err
	}
	e.mu.Lock()
	e.release = append(e.release, ah.Close)
	e.mu.Unlock()
	e.Peer = ah.To(ev.QPNum, ev.QKey)
	return nil
}

// Datagrams sends and receives messages over a datagram endpoint made with
// Events, through buffers of its own. It takes over the endpoint's queues and
// is closed with it.
type Datagrams struct {
	e    *Endpoint
	mr   *uverbs.MR
	slot int // bytes of a receive's buffer, with its GRH
	qkey uint32

	recvMu  sync.Mutex
	sendMu  sync.Mutex
	senders *senders
}

// NewDatagrams posts as many receives as the endpoint's queue takes, of size
// bytes each: at most the port's MTU. A message that comes before is lost; in
// [Options].Setup none can.
func NewDatagrams(e *Endpoint, size int) (*Datagrams, error) {
	n := int(e.QP.Cap().MaxRecvWR)
	d := &Datagrams{e: e, slot: size + uverbs.GRHSize, senders: newSenders()}
	attr, err := e.QP.Query()
	if err != nil {
		return nil, err
	}
	d.qkey = attr.QKey
	// One more, behind them, to send from.
	if d.mr, err = e.AllocMR((n+1)*d.slot, uverbs.AccessLocalWrite); err != nil {
		return nil, err
	}
	if err := d.touch(func([]byte) { e.release = append(e.release, d.senders.close) }); err != nil {
		return nil, err
	}
	for i := range n {
		if err := d.post(i); err != nil {
			return nil, err
		}
	}
	return d, nil
}

func (d *Datagrams) post(i int) error {
	_, err := d.e.QP.PostRecv([]uverbs.RecvWR{{ID: uint64(i), SGL: []uverbs.SGE{d.mr.SGE(i*d.slot, d.slot)}}})
	return err
}

// Datagram tells of a message that came.
type Datagram struct {
	Len  int
	From uverbs.UDAddr // where an answer goes, see KeepSenders

	// Imm is the immediate, if WithImm.
	Imm     uint32
	WithImm bool
}

// Recv waits for a message, copies it to b and says how long it was and where
// an answer goes.
func (d *Datagrams) Recv(ctx context.Context, b []byte) (n int, from uverbs.UDAddr, err error) {
	m, err := d.RecvDatagram(ctx, b)
	return m.Len, m.From, err
}

// RecvDatagram is [Datagrams.Recv] that tells all of the message.
func (d *Datagrams) RecvDatagram(ctx context.Context, b []byte) (m Datagram, err error) {
	d.recvMu.Lock()
	defer d.recvMu.Unlock()
	var wc [1]uverbs.WC
	if err := d.wait(ctx, d.e.RecvCQ, wc[:]); err != nil {
		return m, err
	}
	if m.WithImm = wc[0].Flags&uverbs.WCWithImm != 0; m.WithImm {
		m.Imm = wc[0].Imm()
	}
	var grh [uverbs.GRHSize]byte
	err = d.touch(func(mem []byte) {
		slot := mem[int(wc[0].ID)*d.slot:][:wc[0].ByteLen]
		m.Len = copy(b, slot[copy(grh[:], slot):])
	})
	if err != nil {
		return m, err
	}
	m.From, err = d.sender(&wc[0], grh[:])
	if perr := d.post(int(wc[0].ID)); err == nil {
		err = perr
	}
	return m, err
}

// touch hands f the memory, which stays meanwhile.
func (d *Datagrams) touch(f func(mem []byte)) error {
	d.e.mu.Lock()
	defer d.e.mu.Unlock()
	if d.e.freed {
		return ErrClosed
	}
	f(d.mr.Bytes())
	return nil
}

// wait waits for a completion, which must be good. What is flushed because the
// endpoint ends gives the reason for that.
func (d *Datagrams) wait(ctx context.Context, cq *uverbs.CQ, wc []uverbs.WC) error {
	if _, err := cq.PollWait(ctx, wc); err != nil {
		return err
	}
	err := wc[0].Err()
	if wc[0].Status == uverbs.WCFlushErr && d.e.ending.Load() {
		<-d.e.done
		return d.e.reason
	}
	return err
}

// sender keeps an address handle for everybody a message came from, for a while.
func (d *Datagrams) sender(wc *uverbs.WC, grh []byte) (uverbs.UDAddr, error) {
	h := headerOf(wc, grh)
	var ah *uverbs.AH
	if err := d.touch(func([]byte) { ah = d.senders.find(h) }); err != nil {
		return uverbs.UDAddr{}, err
	}
	if ah == nil {
		var err error
		if ah, err = d.e.PD.CreateReplyAH(d.e.route.Port, wc, grh); err != nil {
			return uverbs.UDAddr{}, err
		}
		d.sendMu.Lock() // nothing is on its way to who is forgotten
		err = d.touch(func([]byte) { d.senders.add(h, ah) })
		d.sendMu.Unlock()
		if err != nil {
			ah.Close()
			return uverbs.UDAddr{}, err
		}
	}
	return ah.To(wc.SrcQP, d.qkey), nil
}

// KeepSenders says how many of those whom messages came from can be answered, and
// at least 1: 1024 if it is not called. Each takes an address handle, of which
// devices have no more than some ten thousand for all. Whoever has not been heard
// of for longer than so many others is forgotten: the answer to a message of
// theirs that came before fails with [ErrSenderForgotten], unless the device has
// given their handle's number to somebody else, who gets it then.
func (d *Datagrams) KeepSenders(n int) error {
	d.sendMu.Lock()
	defer d.sendMu.Unlock()
	return d.touch(func([]byte) {
		d.senders.most = max(n, 1)
		d.senders.trim()
	})
}

// Send sends a message and waits until it is on its way.
func (d *Datagrams) Send(ctx context.Context, to uverbs.UDAddr, b []byte) error {
	return d.send(ctx, uverbs.SendWR{Opcode: uverbs.OpSend, To: to}, b)
}

// SendImm is [Datagrams.Send] of a message with an immediate.
func (d *Datagrams) SendImm(ctx context.Context, to uverbs.UDAddr, b []byte, imm uint32) error {
	return d.send(ctx, uverbs.SendWR{Opcode: uverbs.OpSendImm, To: to, Imm: imm}, b)
}

func (d *Datagrams) send(ctx context.Context, wr uverbs.SendWR, b []byte) error {
	d.sendMu.Lock()
	defer d.sendMu.Unlock()
	if len(b) > d.slot-uverbs.GRHSize {
		return fmt.Errorf("datagram of %d bytes: %w", len(b), uverbs.ErrMessageTooLong)
	}
	at := d.mr.Len() - d.slot
	var forgotten error
	err := d.touch(func(mem []byte) {
		if forgotten = d.senders.check(wr.To); forgotten == nil {
			copy(mem[at:], b)
		}
	})
	if err := cmp.Or(err, forgotten); err != nil {
		return err
	}
	wr.Flags, wr.SGL = uverbs.SendSignaled, []uverbs.SGE{d.mr.SGE(at, len(b))}
	if _, err := d.e.QP.PostSend([]uverbs.SendWR{wr}); err != nil {
		return err
	}
	// The buffer is in use until the completion, so the wait is for it and not
	// for ctx, unless the endpoint is closed.
	var wc [1]uverbs.WC
	return d.wait(context.WithoutCancel(ctx), d.e.SendCQ, wc[:])
}
