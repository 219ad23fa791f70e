package soak

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/cm"
	"github.com/goverbs/verbs/internal/labtest"
	"github.com/goverbs/verbs/tests/workload"
)

// The requests of a client, in its private data.
const (
	keepOpen     = iota + 1 // until the client closes
	serverCloses            // the server closes
	reject                  // the server rejects
	mayCancel               // the client may give up while it connects
)

// small is the capacity of connections that transfer no data.
var small = verbs.QPCap{MaxSendWR: 4, MaxRecvWR: 4, MaxSendSGE: 1, MaxRecvSGE: 1, MaxInline: 16}

func listenChurn(ctx context.Context, addr string, report func(error)) (*workload.Server, error) {
	l, err := cm.Listen(ctx, addr)
	if err != nil {
		return nil, err
	}
	return workload.Serve(ctx, l, l.Accept, func(ctx context.Context, req *cm.Request) error {
		want := req.PrivateData()[0]
		if want == reject {
			return req.Reject([]byte("as you like"))
		}
		e, err := req.Accept(ctx, cm.Options{Cap: small})
		if err != nil {
			if want == mayCancel {
				return nil
			}
			return err
		}
		if want != serverCloses {
			select {
			case <-e.Done():
			case <-idle():
			case <-ctx.Done():
				e.Close()
				return ctx.Err()
			}
		}
		return e.Close()
	}, report, nil), nil
}

func runChurnConn(ctx context.Context, s *side, addr string, r *rand.Rand, n *count) error {
	want := byte(keepOpen + r.IntN(3))
	// Dials over siw are not canceled: if the peer leaves between TCP's
	// handshake and the acceptance, a listener sometimes drops one reference to
	// itself too many (siw_cep_put), after which the kernel is corrupt.
	if s.device != labtest.SIW && r.IntN(4) == 0 {
		want = mayCancel
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, time.Duration(r.Int64N(int64(20*time.Millisecond))))
		defer cancel()
	}
	d := cm.Dialer{ResolveTimeout: 30 * time.Second, Options: cm.Options{Cap: small, PrivateData: []byte{want}}}
	e, err := d.Dial(ctx, addr)
	n.add(0)
	switch rejected, is := errors.AsType[*cm.RejectedError](err); {
	case want == reject && is && bytes.HasPrefix(rejected.PrivateData, []byte("as you like")):
		return nil
	case want == reject:
		return fmt.Errorf("was to be refused: %v", err)
	case want == mayCancel && errors.Is(err, context.DeadlineExceeded):
		return nil
	case want == serverCloses && labtest.IsERDMA(s.device) && errors.Is(err, cm.ErrMPA):
		return nil // erdma takes no answer with whose bytes the end of TCP comes
	case err != nil:
		return err
	}
	defer e.Close()
	if err := registerMemory(e, r); err != nil {
		return err
	}
	if want == serverCloses {
		select {
		case <-e.Done():
		case <-idle():
		case <-ctx.Done():
			return fmt.Errorf("the server does not close: %w", ctx.Err())
		}
	}
	return e.Close()
}

// idle returns a channel for the end of workload.Idle.
func idle() <-chan time.Time {
	if workload.Idle == 0 {
		return nil
	}
	return time.After(workload.Idle)
}

// registerMemory registers memory of both kinds, and releases most of it.
func registerMemory(e *cm.Endpoint, r *rand.Rand) error {
	for range r.IntN(4) {
		size := 1 + r.IntN(1<<20)>>r.IntN(16)
		mr, err := e.AllocMR(size, verbs.AccessLocalWrite)
		if err != nil {
			return err
		}
		mr.Bytes()[size-1] = 1
		if r.IntN(4) == 0 { // closed by the endpoint's Close
			continue
		}
		if err := mr.Close(); err != nil {
			return err
		}
	}
	mem := make([]byte, 1+r.IntN(1<<20)>>r.IntN(16))
	mr, err := e.RegisterMR(mem, verbs.AccessLocalWrite|verbs.AccessRemoteWrite)
	if err != nil {
		return err
	}
	mr.Bytes()[len(mem)-1] = 1
	return mr.Close()
}
