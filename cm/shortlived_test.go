//go:build linux

package cm_test

import (
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/cm"
	"github.com/goverbs/verbs/internal/bridge"
	"github.com/goverbs/verbs/internal/labtest"
)

// TestShortLived accepts connections that bring a message and end at once, while the connection
// manager is busy with others, and establishes them by ID.Notify as soon as the message is there.
// Where the end is in the kernel's queue by then, Linux goes on to repeat the acceptance, for which
// the destruction of the ID waits a minute. Close does not, of the endpoint and of the transport.
func TestShortLived(t *testing.T) {
	labtest.RequireKernel(t)
	if testing.Short() {
		t.Skip("the end of the process waits a minute for such IDs")
	}
	const conns, dialers = 600, 32
	ctx := labtest.Within(t, 3*time.Minute)
	transport := new(cm.Transport)
	l := labtest.Must((&cm.ListenConfig{Transport: transport, Backlog: conns}).Listen(ctx, labtest.AddrOf(labtest.RoCE)+":0"))(t)
	accept := func(r *cm.Request) error {
		var notifies sync.WaitGroup
		defer notifies.Wait()
		e, err := r.Accept(ctx, cm.Options{SharePD: true, Setup: func(e *cm.Endpoint) error {
			notifies.Go(func() {
				for e.Err() == nil && !bridge.HasCompletions(e.RecvCQ) {
					time.Sleep(time.Millisecond)
				}
				e.ID().Notify(verbs.EventCommEst) // fails where it is not needed
			})
			_, err := e.QP.PostRecv(verbs.RecvWR{})
			return err
		}})
		if err != nil {
			return err
		}
		select {
		case <-e.Done():
		case <-ctx.Done():
			return errors.Join(ctx.Err(), e.Close())
		}
		begin := time.Now()
		if err = e.Close(); err == nil && time.Since(begin) > 10*time.Second {
			err = errors.New("Close has taken " + time.Since(begin).String())
		}
		return err
	}
	dial := func() error {
		e, err := (&cm.Dialer{Options: cm.Options{SharePD: true}}).Dial(ctx, l.Addr().String())
		if err != nil {
			return err
		}
		defer e.Close()
		if _, err := e.QP.PostSend(verbs.SendWR{Opcode: verbs.OpSend, Flags: verbs.SendSignaled}); err != nil {
			return err
		}
		wc, err := e.SendCQ.Next(ctx)
		return errors.Join(err, wc.Err())
	}
	var sides sync.WaitGroup
	for range dialers {
		sides.Go(func() {
			for range conns / dialers {
				if err := dial(); err != nil {
					t.Error(err)
				}
			}
		})
	}
	for range conns / dialers * dialers {
		r, err := l.Accept(ctx)
		if err != nil {
			t.Fatal(err)
		}
		sides.Go(func() {
			if err := accept(r); err != nil {
				t.Error(err)
			}
		})
	}
	sides.Wait()
	labtest.Check(t, l.Close())
	begin := time.Now()
	labtest.Check(t, transport.Close())
	if took := time.Since(begin); took > 10*time.Second {
		t.Errorf("the end of the transport has taken %v", took)
	}
}
