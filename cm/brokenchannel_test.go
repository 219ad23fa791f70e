//go:build linux

package cm_test

import (
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/goverbs/verbs/cm"
	"github.com/goverbs/verbs/internal/labtest"
)

// TestBrokenChannel replaces the rdma_cm of a transport with one without events: a call
// that waits returns the reason, the next dial opens another one, and the broken one is
// closed with its last ID.
func TestBrokenChannel(t *testing.T) {
	labtest.RequireKernel(t)
	ctx := within(t, time.Minute)
	cm.DefaultTransport().CloseIdle()
	tr := &cm.Transport{Host: cm.DefaultTransport().Host, IdleTimeout: -1}
	l := labtest.Must((&cm.ListenConfig{Transport: tr}).Listen(ctx, labtest.Addr+":0"))(t)
	fd := sharedFile(t)
	kept := labtest.Must(unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0))(t)
	defer unix.Close(kept)
	null := labtest.Must(os.Open(os.DevNull))(t)
	defer null.Close()
	if err := unix.Dup3(int(null.Fd()), fd, unix.O_CLOEXEC); err != nil {
		t.Fatal(err)
	}
	connect(t, netip.MustParseAddrPort(l.Addr().String()))
	if _, err := l.Accept(ctx); !errors.Is(err, unix.EBADF) {
		t.Errorf("accept on a broken channel: %v", err)
	}
	client, server := connectTransports(t, labtest.RoCE, tr, tr)
	expectStats(t, tr, cm.TransportStats{Channels: 2, IDs: 3, Devices: 1, Endpoints: 2})
	if err := errors.Join(client.Close(), server.Close()); err != nil {
		t.Error(err)
	}
	if err := unix.Dup3(kept, fd, unix.O_CLOEXEC); err != nil {
		t.Fatal(err)
	}
	if err := l.Close(); err != nil {
		t.Error(err)
	}
	labtest.Until(t, "the broken channel to be closed", func() bool { return tr.Stats().Channels <= 1 })
	expectStats(t, tr, cm.TransportStats{Channels: 1, Devices: 1})
	if err := tr.Close(); err != nil {
		t.Error(err)
	}
}

// sharedFile returns the only open descriptor of rdma_cm.
func sharedFile(t *testing.T) int {
	t.Helper()
	links := labtest.Must(filepath.Glob("/proc/self/fd/*"))(t)
	var found []int
	for _, link := range links {
		if to, err := os.Readlink(link); err == nil && to == "/dev/infiniband/rdma_cm" {
			found = append(found, labtest.Must(strconv.Atoi(filepath.Base(link)))(t))
		}
	}
	if len(found) != 1 {
		t.Fatalf("descriptors %v are of rdma_cm, not one", found)
	}
	return found[0]
}

// connect requests a connection on a channel of its own.
func connect(t *testing.T, to netip.AddrPort) {
	t.Helper()
	id := labtest.NewID(t, 0)
	if err := id.ResolveAddr(netip.AddrPort{}, to, time.Second); err != nil {
		t.Fatal(err)
	}
	labtest.Expect(t, id, cm.AddrResolved)
	if err := id.ResolveRoute(time.Second); err != nil {
		t.Fatal(err)
	}
	labtest.Expect(t, id, cm.RouteResolved)
	if err := id.Connect(cm.ConnParam{QPNum: 1}); err != nil {
		t.Fatal(err)
	}
}
