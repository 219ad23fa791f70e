package interop

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/internal/labtest"
	"github.com/goverbs/verbs/tests/interop/pingpong"
	"github.com/goverbs/verbs/uverbs"
)

const pingpongIters = 100

// pingpongPorts is the last TCP port used: every C server has a port of its own.
var pingpongPorts = 18600

// pingpongPair is what runs C's and Go's sides, on the same device or on two.
type pingpongPair struct {
	dev         *uverbs.Context // of Go, which is this process
	addr, cAddr string
	startC      func(t *testing.T, args ...string) *program
	device      string // of C
}

// pairOn has both sides on a device.
func pairOn(t *testing.T, device string) pingpongPair {
	t.Helper()
	startC := func(t *testing.T, args ...string) *program { return start(t, args[0], args[1:]...) }
	addr := labtest.AddrOf(device)
	if !slices.Contains(labtest.Addressed(), device) { // and none is needed on InfiniBand
		addr = "127.0.0.1"
	}
	return pingpongPair{labtest.OpenDevice(t, device), addr, addr, startC, device}
}

// gid returns the arguments that C needs on Ethernet.
func (p pingpongPair) gid(t *testing.T) []string {
	t.Helper()
	if p.cAddr == "127.0.0.1" {
		return nil
	}
	gid := labtest.Must(labtest.OpenDevice(t, p.device).FindGID(1, netip.MustParseAddr(p.cAddr)))(t)
	return []string{"-g", strconv.Itoa(gid.Index)}
}

// play runs both sides and returns C's, which may still run, and the error of Go's.
func (p pingpongPair) play(t *testing.T, goServes bool, o pingpong.Options, cArgs ...string) (c *program, err error) {
	t.Helper()
	ctx := timeLimit(t)
	cArgs = append([]string{"ibv_" + o.Type + "_pingpong", "-d", p.device}, cArgs...)
	if !goServes {
		pingpongPorts++
		port := strconv.Itoa(pingpongPorts)
		c = p.startC(t, append(cArgs, "-p", port)...)
		c.ListensTCP(pingpongPorts)
		conn := labtest.Must(net.Dial("tcp", net.JoinHostPort(p.cAddr, port)))(t)
		return c, o.Run(ctx, t, p.dev, conn, true)
	}
	l := labtest.Must(net.Listen("tcp", net.JoinHostPort(p.addr, "0")))(t)
	defer l.Close()
	defer context.AfterFunc(ctx, func() { l.Close() })()
	c = p.startC(t, append(cArgs, "-p", strconv.Itoa(l.Addr().(*net.TCPAddr).Port), p.addr)...)
	return c, o.Run(ctx, t, p.dev, labtest.Must(l.Accept())(t), false)
}

// test exchanges messages with C on either side. Both sides must find the data correct.
func (p pingpongPair) test(t *testing.T, goServes bool, o pingpong.Options) {
	t.Helper()
	who, wait := "C server", "poll"
	if goServes {
		who = "Go server"
	}
	if o.Events {
		wait = "events"
	}
	t.Run(fmt.Sprintf("%s/%d bytes/%s/%s", o.Type, o.Size, who, wait), func(t *testing.T) {
		c, err := p.play(t, goServes, o, append(p.gid(t), o.Args()...)...)
		labtest.Check(t, err)
		if out := c.Wait(); strings.Contains(out, "invalid data") || !strings.Contains(out, "usec/iter") {
			t.Errorf("C printed\n%s", out)
		}
	})
}

// TestPingPong exchanges messages of many sizes with C's programs, which poll or wait for events
// with every other size.
func TestPingPong(t *testing.T) {
	labtest.RequireKernel(t)
	labtest.Each(t, func(t *testing.T, device string) {
		if !labtest.IWARP(t, device) { // which only the connection manager can connect
			exchangeAll(t, pairOn(t, device))
		}
	})
}

func exchangeAll(t *testing.T, pair pingpongPair) {
	for _, typ := range []string{"rc", "uc", "ud", "srq"} {
		sizes := []int{1, 1024, 65536}
		if typ == "ud" { // limited by the port's MTU
			sizes = []int{1, 1024}
		}
		if testing.Short() {
			sizes = sizes[len(sizes)-1:]
		}
		for i, size := range sizes {
			o := pingpong.Options{Type: typ, Size: size, Iters: pingpongIters, Events: i%2 == 0}
			pair.test(t, false, o)
			o.Events = !o.Events
			pair.test(t, true, o)
		}
	}
}

// TestPingPongDisagree runs two sides with different options.
func TestPingPongDisagree(t *testing.T) {
	labtest.RequireLong(t)
	pair := pairOn(t, labtest.RXE) // whose statuses are its own
	gid := pair.gid(t)
	for _, d := range []struct {
		name     string
		goServes bool
		args     []string // of C
		matches  error    // of Go
		prints   string   // by C
	}{
		{"C client sends more", true, append(gid, "-s", "101"), verbs.WCLocQPOpErr, "remote operation error"},
		{"C server sends more", false, append(gid, "-s", "101"), verbs.WCLocQPOpErr, "remote operation error"},
		{"C server has less room", false, append(gid, "-s", "99"), verbs.WCRemOpErr, "local QP operation error"},
		{"C client without a GID", true, nil, unix.EINVAL, ""},
		{"C server without a GID", false, nil, io.EOF, ""},
	} {
		t.Run(d.name, func(t *testing.T) {
			o := pingpong.Options{Type: "rc", Size: 100, Iters: 10, Events: true}
			c, err := pair.play(t, d.goServes, o, d.args...)
			if !errors.Is(err, d.matches) {
				t.Errorf("Go: %v, not %v", err, d.matches)
			}
			c.Fails(d.prints)
		})
	}
}
