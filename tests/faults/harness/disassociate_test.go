package harness

import (
	"errors"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/internal/labtest"
)

// TestRemovalWhileOpen deletes a device of rxe that a program has open, which kernels from 7.3 on
// do without waiting. The queues stay mapped, but nothing works on them any more: waits end, calls
// fail, and all can be closed.
func TestRemovalWhileOpen(t *testing.T) {
	labtest.RequireKernel(t)
	switch lab := os.Getenv("VERBS_LAB"); {
	case lab == "host":
		t.Skip("removes the machine's devices")
	case strings.HasPrefix(lab, "6."):
		t.Skip("the kernel waits until the device is closed: see TestRemovalReleases")
	}
	const device = labtest.RXE
	(&env{T: t, device: device}).waitDevice()
	t.Cleanup(func() { (&env{T: t, device: device}).addDevice() })
	dev := labtest.OpenDevice(t, device)
	a, b := labtest.NewPair(t, labtest.PairOptions{Device: device, Events: true})
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
	time.Sleep(50 * time.Millisecond)
	start := time.Now()
	labtest.Check(t, netlink.RdmaLinkDel(device))
	t.Logf("deleted after %v", time.Since(start))
	labtest.Check(t, <-fatal)
	for name, c := range ended {
		if err := <-c; !errors.Is(err, verbs.ErrDeviceRemoved) {
			t.Errorf("%s: %v", name, err)
		}
	}
	// The first post finds out.
	a.QP.PostSend(verbs.SendWR{Opcode: verbs.OpSend})
	if _, err := a.QP.PostSend(verbs.SendWR{Opcode: verbs.OpSend}); !errors.Is(err, verbs.ErrQueueFailed) {
		t.Errorf("post: %v", err)
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
