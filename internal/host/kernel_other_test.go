package host_test

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/cm"
	"github.com/goverbs/verbs/rconn"
	"github.com/goverbs/verbs/rdmadev"
	"github.com/goverbs/verbs/rmsg"
	"github.com/goverbs/verbs/rsock"
	"github.com/goverbs/verbs/uverbs"
)

const (
	addr   = "127.0.0.1:7"
	listen = "127.0.0.1:0"
)

// skipWithRDMA skips a test of machines without RDMA.
func skipWithRDMA(t *testing.T) {
	if _, err := os.Stat("/dev/infiniband/rdma_cm"); err == nil {
		t.Skip("this machine has RDMA")
	}
}

// TestNoRDMA uses each package where RDMA is missing.
func TestNoRDMA(t *testing.T) {
	skipWithRDMA(t)
	if devices, err := uverbs.Devices(); err != nil || len(devices) > 0 {
		t.Errorf("uverbs.Devices: %v, %v", devices, err)
	}
	if devices, err := rdmadev.Devices(); err != nil || len(devices) > 0 {
		t.Errorf("rdmadev.Devices: %v, %v", devices, err)
	}
	for what, try := range map[string]func(context.Context) error{
		"uverbs.Find":              func(context.Context) error { _, err := uverbs.Find("rxe0"); return err },
		"uverbs.Open":              func(context.Context) error { _, err := uverbs.Open(""); return err },
		"cm.Dial":                  func(ctx context.Context) error { _, err := cm.Dial(ctx, addr); return err },
		"cm.Listen":                func(ctx context.Context) error { _, err := cm.Listen(ctx, listen); return err },
		"cm.Lookup":                func(ctx context.Context) error { _, err := cm.Lookup(ctx, "127.0.0.1"); return err },
		"cm.Transport.NewChannel":  func(context.Context) error { _, err := cm.DefaultTransport().NewChannel(); return err },
		"rconn.Dial":               func(ctx context.Context) error { _, err := rconn.Dial(ctx, addr); return err },
		"rconn.Listen":             func(ctx context.Context) error { _, err := rconn.Listen(ctx, listen); return err },
		"rmsg.Dial":                func(ctx context.Context) error { _, err := rmsg.Dial(ctx, addr); return err },
		"rmsg.Listen":              func(ctx context.Context) error { _, err := rmsg.Listen(ctx, listen); return err },
		"rsock.Dial":               func(context.Context) error { _, err := rsock.Dial("rdma", addr); return err },
		"rsock.Listen":             func(context.Context) error { _, err := rsock.Listen("rdma", listen); return err },
		"rdmadev.Find":             func(context.Context) error { _, err := rdmadev.Find("rxe0"); return err },
		"rdmadev.System":           func(context.Context) error { _, err := rdmadev.ReadSystem(); return err },
		"rdmadev.AddLink":          func(context.Context) error { return rdmadev.AddLink("rxe0", "rxe", "eth0") },
		"rdmadev.SetSharedDevices": func(context.Context) error { return rdmadev.SetSharedDevices(true) },
	} {
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		err := try(ctx)
		cancel()
		t.Logf("%s: %v", what, err)
		if !errors.Is(err, verbs.ErrNoRDMA) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: %v", what, err)
		}
	}
}

// TestFallback connects by TCP where RDMA is missing.
func TestFallback(t *testing.T) {
	skipWithRDMA(t)
	l, err := (&rsock.ListenConfig{Fallback: rsock.FallbackMissing}).Listen(t.Context(), "rdma", listen)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	go func() {
		if c, err := l.Accept(); err == nil {
			io.Copy(c, c)
			c.Close()
		}
	}()
	c, err := (&rsock.Dialer{Fallback: rsock.FallbackMissing}).DialContext(t.Context(), "rdma", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, ok := c.(*net.TCPConn); !ok {
		t.Errorf("connected by %T", c)
	}
	if _, err := c.Write([]byte("hello")); err != nil {
		t.Fatal(err)
	}
	b := make([]byte, 5)
	if _, err := io.ReadFull(c, b); err != nil || string(b) != "hello" {
		t.Errorf("%q, %v", b, err)
	}
}
