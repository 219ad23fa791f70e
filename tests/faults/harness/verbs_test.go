package harness

import (
	"context"
	"encoding/binary"
	"fmt"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/cm"
	"github.com/goverbs/verbs/uverbs"
)

// half is one end on layer verbs: an endpoint with a region, which holds the
// request, the answer, and messages. A round is an RDMA WRITE of the request, a
// SEND of its number, a SEND of that in return, and an RDMA READ of the answer.
type half struct {
	e    *cm.Endpoint
	mr   *uverbs.MR
	addr uint64 // of the peer's region
	rkey uint32
	n    uint64
}

const receives = 4

func (h *half) options() cm.Options {
	return cm.Options{Setup: func(e *cm.Endpoint) (err error) {
		h.mr, err = e.AllocMR(2*chunk+receives*8, verbs.AccessLocalWrite|verbs.AccessRemoteWrite|verbs.AccessRemoteRead)
		if err != nil {
			return err
		}
		for i := range receives {
			if err := h.post(e, i); err != nil {
				return err
			}
		}
		where := binary.LittleEndian.AppendUint64(nil, h.mr.Addr())
		return e.Announce(binary.LittleEndian.AppendUint32(where, h.mr.RKey()))
	}}
}

// up takes what Dial or Accept returned.
func (h *half) up(e *cm.Endpoint, err error) error {
	if err != nil {
		return err
	}
	h.e = e
	h.addr, h.rkey = binary.LittleEndian.Uint64(e.PrivateData), binary.LittleEndian.Uint32(e.PrivateData[8:])
	return nil
}

func (h *half) request() []byte { return h.mr.Bytes()[:chunk] }
func (h *half) answer() []byte  { return h.mr.Bytes()[chunk : 2*chunk] }
func message(i int) int         { return 2*chunk + 8*i }

func (h *half) post(e *cm.Endpoint, i int) error {
	_, err := e.QP.PostRecv(verbs.RecvWR{ID: uint64(i), SGL: []verbs.SGE{h.mr.SGE(message(i), 8)}})
	return err
}

// send posts requests and waits for all of them.
func (h *half) send(ctx context.Context, wrs ...verbs.SendWR) error {
	for i := range wrs {
		wrs[i].Flags |= verbs.SendSignaled
	}
	if _, err := h.e.QP.PostSend(wrs...); err != nil {
		return h.why(err)
	}
	var wcs [4]verbs.WC
	for left := len(wrs); left > 0; {
		n, err := h.e.SendCQ.PollWait(ctx, wcs[:left])
		if err != nil {
			return err
		}
		for i := range wcs[:n] {
			if err := cm.SendError(&wcs[i]); err != nil {
				return h.why(err)
			}
		}
		left -= n
	}
	return nil
}

// recv waits for the message n.
func (h *half) recv(ctx context.Context) error {
	var wcs [1]verbs.WC
	if _, err := h.e.RecvCQ.PollWait(ctx, wcs[:]); err != nil {
		return err
	}
	if err := wcs[0].Err(); err != nil {
		return h.why(err)
	}
	i := int(wcs[0].ID)
	if got := binary.LittleEndian.Uint64(h.mr.Bytes()[message(i):]); got != h.n {
		return fmt.Errorf("%w: message %d in place of %d", errCorrupt, got, h.n)
	}
	return h.post(h.e, i)
}

func (h *half) why(err error) error {
	return because(err, h.e.Done(), h.e.Err)
}

func (h *half) number() verbs.SendWR {
	return verbs.SendWR{Opcode: verbs.OpSend, Inline: binary.LittleEndian.AppendUint64(nil, h.n)}
}

func (h *half) Round(ctx context.Context) error {
	fill(h.request(), request(h.n))
	err := h.send(ctx, verbs.SendWR{Opcode: verbs.OpRDMAWrite, SGL: []verbs.SGE{h.mr.SGE(0, chunk)}, RemoteAddr: h.addr, RKey: h.rkey}, h.number())
	if err != nil {
		return fmt.Errorf("request: %w", err)
	}
	if err := h.recv(ctx); err != nil {
		return fmt.Errorf("answer: %w", err)
	}
	// A byte more proves that rxe has done all of a READ.
	err = h.send(ctx, verbs.SendWR{Opcode: verbs.OpRDMARead, SGL: []verbs.SGE{h.mr.SGE(chunk, chunk)}, RemoteAddr: h.addr + chunk, RKey: h.rkey},
		verbs.SendWR{Opcode: verbs.OpRDMARead, SGL: []verbs.SGE{h.mr.SGE(chunk, 1)}, RemoteAddr: h.addr + chunk, RKey: h.rkey})
	if err != nil {
		return fmt.Errorf("read: %w", err)
	}
	h.n++
	return verify(h.answer(), answer(h.n-1))
}

func (h *half) Close() error { return h.e.Close() }

func dialVerbs(ctx context.Context, addr string) (session, error) {
	h := new(half)
	return h, h.up((&cm.Dialer{Options: h.options()}).Dial(ctx, addr))
}

func serveVerbs(ctx context.Context, addr string, ready func(string)) error {
	l, err := cm.Listen(ctx, addr)
	if err != nil {
		return err
	}
	defer l.Close()
	ready(l.Addr().String())
	for {
		r, err := l.Accept(ctx)
		if err != nil {
			return err
		}
		go func() {
			h := new(half)
			if err := h.up(r.Accept(ctx, h.options())); err != nil {
				report(err)
				return
			}
			defer h.Close()
			report(h.serve(ctx))
		}()
	}
}

func (h *half) serve(ctx context.Context) error {
	for ; ; h.n++ {
		if err := h.recv(ctx); err != nil {
			return err
		}
		if err := verify(h.request(), request(h.n)); err != nil {
			return err
		}
		fill(h.answer(), answer(h.n))
		if err := h.send(ctx, h.number()); err != nil {
			return err
		}
	}
}
