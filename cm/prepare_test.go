//go:build linux

package cm_test

import (
	"errors"
	"fmt"
	"syscall"
	"testing"
	"time"

	"github.com/goverbs/verbs/cm"
	"github.com/goverbs/verbs/internal/labtest"
	"github.com/goverbs/verbs/uverbs"
)

// TestSetupFails dials with a Setup that fails, with an error as of a port in use: it is called once, and its
// endpoint has ended.
func TestSetupFails(t *testing.T) {
	labtest.RequireBoth(t)
	labtest.Each(t, func(t *testing.T, device string) {
		var made []*cm.Endpoint
		d := cm.Dialer{Options: cm.Options{Setup: func(e *cm.Endpoint) error {
			made = append(made, e)
			return fmt.Errorf("listen: %w", syscall.EADDRINUSE)
		}}}
		if _, err := d.Dial(within(t, time.Minute), labtest.AddrOf(device)+":7471"); !errors.Is(err, syscall.EADDRINUSE) || len(made) != 1 {
			t.Fatalf("%v, after %d calls", err, len(made))
		}
		select {
		case <-made[0].Done():
		default:
			t.Error("the endpoint has not ended")
		}
	})
}

// TestPrepare chooses PD and CQ when the device is known, on both sides.
func TestPrepare(t *testing.T) {
	labtest.RequireBoth(t)
	labtest.Each(t, func(t *testing.T, device string) {
		ctx := within(t, 20*time.Second)
		dev := labtest.OpenDevice(t, device)
		pd := labtest.Made(dev.AllocPD())(t)
		cq := labtest.Made(dev.CreateCQ(uverbs.CQOptions{Depth: 256}))(t)
		opt := cm.Options{Prepare: func(r cm.Route, opt *cm.Options) error {
			if r.Device != dev.Device().GUID {
				t.Errorf("the device is %v, not %v", r.Device, dev.Device().GUID)
			}
			opt.PD, opt.SendCQ, opt.RecvCQ = pd, cq, cq
			return nil
		}}
		l := labtest.Made(cm.Listen(ctx, labtest.AddrOf(device)+":0"))(t)
		accepted := make(chan *cm.Endpoint, 1)
		go func() {
			defer close(accepted)
			r, err := l.Accept(ctx)
			if err != nil {
				t.Error(err)
				return
			}
			if e, err := r.Accept(ctx, opt); err != nil {
				t.Error(err)
			} else {
				accepted <- e
			}
		}()
		client := labtest.Made((&cm.Dialer{Options: opt}).Dial(ctx, l.Addr().String()))(t)
		server, ok := <-accepted
		if !ok {
			return
		}
		labtest.Close(t, server)
		for _, e := range []*cm.Endpoint{client, server} {
			if e.PD != pd || e.SendCQ != cq || e.QP.RecvCQ() != cq {
				t.Error("what was chosen is not used")
			}
		}
		no := errors.New("no")
		d := cm.Dialer{Options: cm.Options{Prepare: func(cm.Route, *cm.Options) error { return no }}}
		if _, err := d.Dial(ctx, l.Addr().String()); !errors.Is(err, no) {
			t.Errorf("dial that is not prepared: %v", err)
		}
	})
}
