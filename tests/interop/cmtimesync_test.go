package interop

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"strconv"
	"testing"
	"time"

	"github.com/goverbs/verbs/cm"
	"github.com/goverbs/verbs/internal/labtest"
)

// Since release 60 or so, cmtime's sides exchange addresses over TCP, and wait for each other
// before each step. This is the side that the other connects to.
type cmtimeSync struct{ net.Conn }

// cmtimePeer is what the sides exchange, in the host's byte order: an address and a role.
type cmtimePeer struct {
	Family uint16
	Port   [2]byte
	Addr   [4]byte
	_      [120]byte
	Role   uint32
	_      [4]byte
}

const (
	cmtimeConnects = 0
	cmtimeListens  = 1
)

// exchange tells the other side about this one, and returns the other's address.
func (s cmtimeSync) exchange(role uint32, own netip.AddrPort) (netip.AddrPort, error) {
	me, other := cmtimePeer{Family: 2, Port: [2]byte{byte(own.Port() >> 8), byte(own.Port())}, Addr: own.Addr().As4(), Role: role}, cmtimePeer{}
	err := binary.Read(s, binary.NativeEndian, &other)
	if err == nil {
		err = binary.Write(s, binary.NativeEndian, []cmtimePeer{me, other})
	}
	return netip.AddrPortFrom(netip.AddrFrom4(other.Addr), binary.BigEndian.Uint16(other.Port[:])), err
}

// The steps before which the sides wait for each other.
const (
	cmtimeReset      = 0
	cmtimeReady      = 7
	cmtimeConnected  = 12
	cmtimeDisconnect = 14
)

// sync waits until the other side has come to a step.
func (s cmtimeSync) sync(step byte) error {
	var b [1]byte
	if _, err := io.ReadFull(s, b[:]); err != nil {
		return fmt.Errorf("step %d: %w", step, err)
	}
	if b[0] != step {
		return fmt.Errorf("step %d instead of %d", b[0], step)
	}
	_, err := s.Write(b[:])
	return err
}

// phase goes through the steps: it makes n connections, and ends them.
func (s cmtimeSync) phase(ctx context.Context, n int, connect func(context.Context) (*cm.Endpoint, error), disconnect func(context.Context, *cm.Endpoint) error) error {
	if err := errors.Join(s.sync(cmtimeReset), s.sync(cmtimeReady)); err != nil {
		return err
	}
	up := make([]*cm.Endpoint, n)
	err := forEachConn(up, func(i int, _ *cm.Endpoint) (err error) {
		up[i], err = connect(ctx)
		return err
	})
	if err == nil {
		err = s.sync(cmtimeConnected)
	}
	if err == nil {
		err = forEachConn(up, func(_ int, e *cm.Endpoint) error { return disconnect(ctx, e) })
	}
	if err == nil {
		err = s.sync(cmtimeDisconnect)
	}
	for _, e := range up {
		if e != nil {
			err = errors.Join(err, e.Close())
		}
	}
	return err
}

// startCmtime starts C's side, and accepts its TCP connection.
func startCmtime(ctx context.Context, t *testing.T, local string, args ...string) (*program, cmtimeSync) {
	t.Helper()
	l := labtest.Made(net.Listen("tcp", local+":0"))(t)
	_, port, _ := net.SplitHostPort(l.Addr().String())
	p := start(t, "cmtime", append(args, "-C", local, "-p", port, "-b", local, "-c", strconv.Itoa(cmtimeConnections()))...)
	c := labtest.Made(l.Accept())(t)
	end, _ := ctx.Deadline()
	c.SetDeadline(end)
	return p, cmtimeSync{c}
}

// testCmtimeSync is TestCmtime for newer releases. Their third phase has no QPs, which iWARP
// refuses: between two C programs it fails there, and on rxe as well if they are on one device.
func testCmtimeSync(t *testing.T, device string) {
	local := labtest.AddrOf(device)
	phases, iwarp := []int{1, cmtimeConnections(), cmtimeConnections()}, labtest.IWARP(t, device)
	if iwarp {
		phases = phases[:2]
	}
	finish := func(t *testing.T, p *program) {
		if iwarp {
			p.Kill()
		} else {
			p.Wait()
		}
	}
	t.Run("Go server", func(t *testing.T) {
		ctx := timeLimit(t)
		l := labtest.Made(cm.Listen(ctx, local+":0"))(t)
		client, s := startCmtime(ctx, t, local)
		_, err := s.exchange(cmtimeListens, l.Addr().AddrPort)
		labtest.Check(t, err)
		for i, n := range phases {
			begin := time.Now()
			err := s.phase(ctx, n, func(ctx context.Context) (*cm.Endpoint, error) {
				r, err := l.Accept(ctx)
				if err != nil {
					return nil, err
				}
				return r.Accept(ctx, cmtimeOptions)
			}, func(ctx context.Context, e *cm.Endpoint) error {
				return (&ucmatoseConn{Endpoint: e}).waitDisconnect(ctx)
			})
			if err != nil {
				t.Fatalf("phase %d: %v", i, err)
			}
			t.Logf("phase %d: %d connections in %v", i, n, time.Since(begin))
		}
		finish(t, client)
	})
	t.Run("Go client", func(t *testing.T) {
		ctx := timeLimit(t)
		server, s := startCmtime(ctx, t, local, "-L")
		addr, err := s.exchange(cmtimeConnects, netip.AddrPortFrom(netip.MustParseAddr(local), 0))
		labtest.Check(t, err)
		d := cm.Dialer{Options: cmtimeOptions, LocalAddr: netip.AddrPortFrom(netip.MustParseAddr(local), 0)}
		for i, n := range phases {
			begin := time.Now()
			err := s.phase(ctx, n, func(ctx context.Context) (*cm.Endpoint, error) { return d.Dial(ctx, addr.String()) },
				func(_ context.Context, e *cm.Endpoint) error { e.Disconnect(); return nil })
			if err != nil {
				t.Fatalf("phase %d: %v", i, err)
			}
			t.Logf("phase %d: %d connections in %v", i, n, time.Since(begin))
		}
		finish(t, server)
	})
}
