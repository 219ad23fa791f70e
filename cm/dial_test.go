//go:build linux

package cm_test

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/goverbs/verbs/cm"
	"github.com/goverbs/verbs/internal/labtest"
)

// silentListener returns an address on a device's subnet where no host answers.
func silentListener(t *testing.T, device string) string {
	t.Helper()
	ip := func(format string, args ...any) {
		t.Helper()
		if out, err := exec.Command("ip", strings.Fields(fmt.Sprintf(format, args...))...).CombinedOutput(); err != nil {
			t.Errorf("%v: %s", err, out)
		}
	}
	if !labtest.IWARP(t, device) {
		addr, link := strings.TrimSuffix(labtest.AddrOf(device), "1")+"77", labtest.LinkOf(device)
		ip("neigh replace %s lladdr 02:00:00:00:00:77 dev %s", addr, link) // so that it resolves
		t.Cleanup(func() { ip("neigh del %s dev %s", addr, link) })
		return addr
	}
	const addr = "10.9.1.77" // a dummy interface needs no neighbours
	t.Cleanup(func() {
		// The kernel connects until TCP times out, or until the address exists and refuses.
		ip("addr add %s/32 dev d0", addr)
		defer ip("addr del %s/32 dev d0", addr)
		for end := time.Now().Add(90 * time.Second); labtest.Must(labtest.Resources())(t)[device]["cm_id"] > 0; time.Sleep(100 * time.Millisecond) {
			if time.Now().After(end) {
				t.Error("the kernel still connects")
				return
			}
		}
	})
	return addr
}

// TestConnectTimeout dials a host that does not answer: the dial ends after
// ConnectTimeout, or with its context.
func TestConnectTimeout(t *testing.T) {
	labtest.RequireKernel(t)
	labtest.Each(t, func(t *testing.T, device string) {
		addr := silentListener(t, device) + ":7471"
		start := time.Now()
		if _, err := (&cm.Dialer{ConnectTimeout: 300 * time.Millisecond}).Dial(t.Context(), addr); !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "no answer within 300ms") {
			t.Errorf("dial with a timeout: %v after %v", err, time.Since(start))
		}
		// The context ends first.
		if _, err := cm.Dial(within(t, 300*time.Millisecond), addr); !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "no answer in time") {
			t.Errorf("dial with a context: %v", err)
		}
		start = time.Now()
		_, err := (&cm.Dialer{ConnectTimeout: -1}).Dial(within(t, 300*time.Millisecond), addr)
		if !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("dial without a timeout: %v after %v", err, time.Since(start))
		}
	})
}

// TestFailureAtTimeout dials with too much private data, which the connection manager refuses when
// ConnectTimeout is over: the error is the refusal.
func TestFailureAtTimeout(t *testing.T) {
	labtest.RequireBoth(t)
	d := cm.Dialer{ConnectTimeout: 1, Options: cm.Options{PrivateData: make([]byte, 100)}}
	_, err := d.Dial(t.Context(), labtest.AddrOf(labtest.RoCE)+":7471")
	if !errors.Is(err, cm.ErrPrivateData) || strings.Contains(err.Error(), "no answer") {
		t.Error(err)
	}
}

// TestDefaultConnectTimeout dials a host that does not answer with the default timeout.
func TestDefaultConnectTimeout(t *testing.T) {
	t.Parallel()
	labtest.RequireKernel(t)
	if testing.Short() {
		t.Skip("takes 30 s")
	}
	labtest.Each(t, func(t *testing.T, device string) {
		t.Parallel()
		addr := silentListener(t, device) + ":7471"
		start := time.Now()
		_, err := cm.Dial(t.Context(), addr)
		if took := time.Since(start); !errors.Is(err, context.DeadlineExceeded) || took < 29*time.Second || took > 60*time.Second {
			t.Errorf("%v after %v", err, took)
		}
	})
}

// TestDialNames dials names with two addresses; only the last one answers.
func TestDialNames(t *testing.T) {
	labtest.RequireKernel(t)
	hosts := labtest.Must(os.ReadFile("/etc/hosts"))(t)
	defer os.WriteFile("/etc/hosts", hosts, 0o644)
	// The resolver would move an address without a route to the end.
	for _, device := range labtest.Addressed() {
		first := labtest.AddrOf(labtest.SIW)
		if device == labtest.SIW {
			first = labtest.AddrOf(labtest.RXE)
		}
		hosts := fmt.Sprintf("\n%s %s.example\n%s %s.example\n", first, device, labtest.AddrOf(device), device)
		f := labtest.Must(os.OpenFile("/etc/hosts", os.O_APPEND|os.O_WRONLY, 0))(t)
		_, err := f.WriteString(hosts)
		if err := errors.Join(err, f.Close()); err != nil {
			t.Fatal(err)
		}
	}
	labtest.Each(t, func(t *testing.T, device string) {
		own, name := labtest.AddrOf(device), device+".example"
		ctx := within(t, 20*time.Second)
		l := labtest.Made(cm.Listen(ctx, own+":0"))(t)
		go func() {
			if r, err := l.Accept(ctx); err == nil {
				if e, err := r.Accept(ctx, cm.Options{}); err == nil {
					<-e.Done()
					e.Close()
				}
			}
		}()
		e, err := cm.Dial(ctx, fmt.Sprintf("%s:%d", name, l.Addr().Port()))
		if err != nil {
			t.Fatal(err)
		}
		if e.RemoteAddr().Addr() != netip.MustParseAddr(own) {
			t.Errorf("dialed %v", e.RemoteAddr())
		}
		if err := e.Close(); err != nil {
			t.Error(err)
		}
	})
}

// TestAddressErrors checks that errors about an address contain it once.
func TestAddressErrors(t *testing.T) {
	for addr, want := range map[string]string{
		"10.9.0.1":  "dial 10.9.0.1: missing port in address",
		"[10.9.0.1": "dial [10.9.0.1: missing port in address",
	} {
		if _, err := cm.Dial(t.Context(), addr); err == nil || err.Error() != want {
			t.Errorf("%v, not %q", err, want)
		}
	}
}

// TestPermission opens the connection manager as a user without permission.
func TestPermission(t *testing.T) {
	labtest.RequireKernel(t)
	const node = "/dev/infiniband/rdma_cm"
	info := labtest.Must(os.Stat(node))(t)
	if err := os.Chmod(node, 0o600); err != nil {
		t.Fatal(err)
	}
	defer os.Chmod(node, info.Mode())
	failed := make(chan error)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread, with its credentials, ends
		if _, err := unix.SetfsuidRetUid(65534); err != nil {
			failed <- err
			return
		}
		ch, err := cm.DefaultTransport().NewChannel()
		if err == nil {
			ch.Close()
		}
		failed <- err
	}()
	if err := <-failed; !errors.Is(err, os.ErrPermission) || !strings.Contains(err.Error(), "give this user access to the device node") {
		t.Error(err)
	}
}
