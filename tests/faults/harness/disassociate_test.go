package harness

import (
	"errors"
	"testing"
	"time"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/internal/labtest"
	"github.com/goverbs/verbs/rdmatest"
	"github.com/goverbs/verbs/uverbs"
)

// TestRemovalWhileOpen deletes a device that a program has open, which kernels do without waiting
// if it is an adapter, or, from 7.3 on, one of rxe. The queues stay mapped, but nothing works on
// them any more: waits end, calls and posts fail, receives of an SRQ complete, and all can be
// closed.
func TestRemovalWhileOpen(t *testing.T) {
	labtest.RequireGuest(t, "removes the machine's devices")
	for _, device := range labtest.Addressed() {
		t.Run(device, func(t *testing.T) {
			if device == labtest.SIW || device == labtest.RXE && labtest.Older(7, 3) || labtest.OlderERDMA(device) {
				t.Skip("the kernel waits until the device is closed: see TestRemovalReleases")
			}
			removeWhileOpen(t, device)
		})
	}
}

func removeWhileOpen(t *testing.T, device string) {
	e := &env{T: t, device: device}
	e.waitDevice()
	remove := e.remover()
	t.Cleanup(e.addDevice)
	dev := labtest.OpenDevice(t, device)
	a, b := labtest.NewPair(t, device, rdmatest.PairOptions{Events: true})
	ctx := labtest.Within(t, roundTimeout)
	waits := map[string]func() error{
		"wait for a completion":     func() error { _, err := a.RecvCQ.Next(ctx); return err },
		"another for a completion":  func() error { _, err := a.RecvCQ.Next(ctx); return err },
		"wait for an event of a CQ": func() error { return errors.Join(b.RecvCQ.Arm(false), b.RecvCQ.Wait(ctx)) },
	}
	ended := map[string]chan error{}
	for name, wait := range waits {
		c := make(chan error, 1)
		ended[name] = c
		go func() { c <- wait() }()
	}
	fatal := make(chan error, 1)
	go func() {
		for {
			e, err := dev.NextAsyncEvent(ctx)
			if err != nil || e.Type == verbs.EventDeviceFatal {
				fatal <- err
				return
			}
		}
	}()
	// A third program only polls.
	polled, _ := labtest.NewPair(t, device, rdmatest.PairOptions{SRQ: labtest.Has(t, device, uverbs.FeatureSRQ)})
	labtest.Must(polled.PostRecv(verbs.RecvWR{ID: 1}, verbs.RecvWR{ID: 2}))(t)
	time.Sleep(50 * time.Millisecond)
	start := time.Now()
	labtest.Check(t, remove())
	t.Logf("deleted after %v", time.Since(start))
	labtest.Check(t, <-fatal)
	for name, c := range ended {
		if err := <-c; !errors.Is(err, verbs.ErrDeviceRemoved) {
			t.Errorf("%s: %v", name, err)
		}
	}
	for id := uint64(1); id <= 2; {
		var wcs [2]verbs.WC
		for _, wc := range wcs[:polled.RecvCQ.Poll(wcs[:])] {
			if wc.ID != id || wc.Status != verbs.WCFlushErr || wc.QPNum != polled.QP.Num() {
				t.Errorf("completion of receive %d: %+v", id, wc)
			}
			id++
		}
		labtest.Check(t, ctx.Err())
	}
	for name, post := range map[string]func() (int, error){
		"send":           func() (int, error) { return a.QP.PostSend(verbs.SendWR{Opcode: verbs.OpSend}) },
		"receive":        func() (int, error) { return a.PostRecv(verbs.RecvWR{}) },
		"shared receive": func() (int, error) { return polled.PostRecv(verbs.RecvWR{}) },
		"nothing":        func() (int, error) { return polled.QP.PostSend() },
	} {
		if _, err := post(); !errors.Is(err, verbs.ErrDeviceRemoved) {
			t.Errorf("post %s: %v", name, err)
		}
	}
	for name, call := range map[string]func() error{
		"query device": func() error { _, err := dev.QueryDevice(); return err },
		"query QP":     func() error { _, err := a.QP.Query(); return err },
		"arm":          func() error { return a.SendCQ.Arm(false) },
		"PD":           func() error { _, err := dev.AllocPD(); return err },
	} {
		if err := call(); !errors.Is(err, verbs.ErrDeviceRemoved) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
