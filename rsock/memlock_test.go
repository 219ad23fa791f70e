//go:build linux

package rsock_test

import (
	"io"
	"net"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/goverbs/verbs/cm"
	"github.com/goverbs/verbs/internal/labtest"
	"github.com/goverbs/verbs/internal/sys"
	"github.com/goverbs/verbs/rsock"
)

// unprivileged runs the calling test again in a child process, as a user without
// capabilities, which runs test.
func unprivileged(t *testing.T, test func(t *testing.T, device string)) {
	const child = "RSOCK_UNPRIVILEGED"
	labtest.Require(t)
	if os.Getenv(child) != "" {
		labtest.Each(t, func(t *testing.T, device string) {
			labtest.Until(t, "the connections of the device before to be gone", func() bool {
				cm.DefaultTransport().CloseIdle()
				_, used := sys.LockedMemory()
				return used == 0
			})
			test(t, device)
		})
		return
	}
	for _, node := range labtest.Must(os.ReadDir("/dev/infiniband"))(t) {
		if err := os.Chmod("/dev/infiniband/"+node.Name(), 0o666); err != nil {
			t.Fatal(err)
		}
	}
	cmd := exec.Command("/proc/self/exe", "-test.v", "-test.timeout=2m", "-test.run=^"+t.Name()+"$") // other users may not have access to its folder
	cmd.Env = append(os.Environ(), child+"=1")
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	t.Logf("%s", out)
}

// limit limits the locked memory of an unprivileged process.
func limit(t *testing.T, bytes uint64) {
	t.Helper()
	if err := unix.Setrlimit(unix.RLIMIT_MEMLOCK, &unix.Rlimit{Cur: bytes, Max: 8 << 20}); err != nil {
		t.Fatal(err)
	}
}

// TestLockedMemory tests that both ends of a hundred connections fit in the kernel's default limit
// of locked memory, and of 55 on adapters, whose queues are locked memory as well.
func TestLockedMemory(t *testing.T) {
	labtest.RequireKernel(t)
	if testing.Short() {
		t.Skip("makes 200 connections")
	}
	unprivileged(t, func(t *testing.T, device string) {
		limit(t, 8<<20)
		conns := 100
		if labtest.PinsQueues(t, device) {
			conns = 55
		}
		l := labtest.Must(rsock.Listen("rdma", labtest.AddrOf(device)+":0"))(t)
		defer l.Close()
		data := randomBytes(50000)
		var wg sync.WaitGroup
		defer wg.Wait()
		for range conns {
			a, err := rsock.Dial("rdma", l.Addr().String())
			if err != nil {
				t.Fatal(err)
			}
			b := labtest.Must(l.Accept())(t)
			defer wg.Go(func() { a.Close() })
			defer wg.Go(func() { b.Close() })
			for _, c := range []net.Conn{a, b} {
				c.SetDeadline(time.Now().Add(5 * time.Minute))
			}
			wg.Go(func() { io.Copy(b, b) })
			wg.Go(func() {
				go a.Write(data)
				got := make([]byte, len(data))
				if _, err := io.ReadFull(a, got); err != nil || string(got) != string(data) {
					t.Errorf("echo: %v, or other data", err)
				}
				a.(*rsock.Conn).CloseWrite()
			})
		}
		_, used := sys.LockedMemory()
		t.Logf("%d ends take %d KiB", 2*conns, used>>10)
		wg.Wait()
	})
}

// TestNoMemory tests what both sides report when the accepting one lacks memory for a
// connection, and that its listener continues.
func TestNoMemory(t *testing.T) {
	labtest.RequireKernel(t)
	unprivileged(t, func(t *testing.T, device string) {
		dialing := uint64(20 << 10) // what the dialing side takes, and a page or two
		if labtest.PinsQueues(t, device) {
			dialing += 20 << 10
		}
		limit(t, dialing)
		l := labtest.Must(rsock.Listen("rdma", labtest.AddrOf(device)+":0"))(t)
		defer l.Close()
		_, err := rsock.Dial("rdma", l.Addr().String())
		want(t, "dial", err, syscall.ECONNREFUSED)
		if !strings.Contains(err.Error(), "it lacks locked memory") {
			t.Error(err)
		}
		_, err = l.Accept()
		want(t, "accept", err, syscall.ENOMEM)
		if temporary, ok := err.(interface{ Temporary() bool }); !ok || !temporary.Temporary() {
			t.Errorf("%#v is not temporary", err)
		}
		if !strings.Contains(err.Error(), "ulimit -l") {
			t.Error(err)
		}

		_, used := sys.LockedMemory() // by what package cm keeps for the next connection
		limit(t, used+8<<10)
		_, err = rsock.Dial("rdma", l.Addr().String())
		want(t, "dial without memory", err, syscall.ENOMEM)
		if !strings.Contains(err.Error(), "ulimit -l") {
			t.Error(err)
		}

		limit(t, 8<<20)
		a := labtest.Must(rsock.Dial("rdma", l.Addr().String()))(t)
		defer a.Close()
		b := labtest.Must(l.Accept())(t)
		defer b.Close()
		go a.Write([]byte("x"))
		if _, err := io.ReadFull(b, make([]byte, 1)); err != nil {
			t.Error(err)
		}
	})
}

// TestExplicitBuffers tests that rings are halved if they exceed the available memory.
func TestExplicitBuffers(t *testing.T) {
	labtest.RequireKernel(t)
	unprivileged(t, func(t *testing.T, device string) {
		limit(t, 1<<20)
		opt := rsock.Options{ReadBuffer: 1 << 20, WriteBuffer: 3 << 20}
		var log labtest.Log
		l := labtest.Must((&rsock.ListenConfig{Options: opt, Logger: log.Logger()}).Listen(ctx, "rdma", labtest.AddrOf(device)+":0"))(t)
		defer l.Close()
		a := labtest.Must((&rsock.Dialer{Options: opt, Logger: log.Logger()}).Dial("rdma", l.Addr().String()))(t).(*rsock.Conn)
		defer a.Close()
		b := labtest.Must(l.Accept())(t).(*rsock.Conn)
		defer b.Close()
		log.Want(t, "level=INFO", `msg="halved buffers"`, "remote=", "read_buffer=524288", "write_buffer=1572864")
		for _, c := range []*rsock.Conn{a, b} {
			if s := c.Stats(); s.ReadBuffer >= 1<<20 || s.WriteBuffer >= 1<<20 || s.ReadBuffer < 4096 {
				t.Errorf("%+v", s)
			}
		}
		data := randomBytes(1 << 20)
		go a.Write(data)
		got := make([]byte, len(data))
		if _, err := io.ReadFull(b, got); err != nil || string(got) != string(data) {
			t.Errorf("%v, or other data", err)
		}
	})
}
