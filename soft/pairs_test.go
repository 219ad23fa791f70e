//go:build !nordma

// With the tag, the portable sockets cannot join a group on the loopback interface of Linux.

package soft_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/cm"
	"github.com/goverbs/verbs/soft"
	"github.com/goverbs/verbs/uverbs"
	"github.com/goverbs/verbs/verbstest"
)

// TestPairs runs every two operations of a device beside each other under traffic, and then each
// operation beside Close. None may wait for ever for the other.
func TestPairs(t *testing.T) {
	rounds := 5 * time.Millisecond
	if testing.Short() {
		rounds = 2 * time.Millisecond
	}
	eachNetwork(t, func(t *testing.T, make func(addrs ...string) *soft.Device) {
		peer := make("127.0.0.1")
		b := newTraffic(t, peer)
		defer b.close(t)
		a := newTraffic(t, make("127.0.0.2"))
		stop := b.flood(t, a)
		names := slices.Sorted(maps.Keys(operations))
		for i, x := range names {
			for _, y := range names[i:] {
				noHang(x+" beside "+y, func() {
					until := time.Now().Add(rounds)
					var both sync.WaitGroup
					for _, name := range []string{x, y} {
						both.Go(func() {
							for first := true; first || time.Now().Before(until); first = false {
								if err := operations[name](a, b); err != nil {
									t.Errorf("%s: %v", name, err)
									return
								}
							}
						})
					}
					both.Wait()
				})
			}
		}
		stop()
		a.close(t)
		for _, name := range names {
			a := newTraffic(t, make("127.0.0.2"))
			stop := b.flood(t, a)
			noHang(name+" beside Close", func() {
				var all sync.WaitGroup
				started := sync.OnceFunc(func() { all.Go(func() { a.device.Close() }) })
				all.Go(func() {
					for a.open() {
						operations[name](a, b) // fails at some time
						started()
					}
				})
				all.Wait()
			})
			stop()
			a.close(t)
		}
	})
}

// eachNetwork runs a test with devices of hosts of their own, on UDP and on a network in memory.
func eachNetwork(t *testing.T, test func(t *testing.T, make func(addrs ...string) *soft.Device)) {
	t.Run("UDP", func(t *testing.T) {
		test(t, func(addrs ...string) *soft.Device { return newUDPDevice(t, addrs...) })
	})
	t.Run("memory", func(t *testing.T) {
		network := verbstest.NewNetwork(verbstest.Options{})
		test(t, func(addrs ...string) *soft.Device {
			return newDevice(t, soft.Options{Network: network, Host: addrs[0], Addrs: parsed(addrs)})
		})
	})
}

// TestGroupOnce sends datagrams to a group that a device with two addresses on a link has joined:
// it receives each once.
func TestGroupOnce(t *testing.T) {
	eachNetwork(t, func(t *testing.T, device func(addrs ...string) *soft.Device) {
		a, b := newTraffic(t, device("127.0.0.2", "127.0.0.4")), newTraffic(t, device("127.0.0.3"))
		defer a.close(t)
		defer b.close(t)
		to := must(b.datagrams.Addr(1))(t)
		to.GID = group
		ah := must(b.endpoint.pd.CreateAH(to.PathFrom(must(b.datagrams.Addr(1))(t))))(t)
		defer ah.Close()
		recv := func() {
			if _, err := a.datagrams.PostRecv(verbs.RecvWR{SGL: []verbs.SGE{a.endpoint.mr.SGE(0, 100)}}); err != nil {
				t.Fatal(err)
			}
		}
		recv()
		// A second copy, which may be late, would take the receive of a later datagram.
		for i := range 10 {
			recv()
			if _, err := b.datagrams.PostSend(verbs.SendWR{Opcode: verbs.OpSend, Inline: make([]byte, i), To: ah.To(groupQPN, trafficQKey)}); err != nil {
				t.Fatal(err)
			}
			if wc, err := a.endpoint.cq.Next(within(t)); err != nil || int(wc.ByteLen) != 40+i { // with the GRH
				t.Errorf("datagram %d: %+v, %v", i, wc, err)
			}
		}
	})
}

// noHang ends the process with the stacks of all goroutines if f does not return: nothing could be
// closed then.
func noHang(what string, f func()) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		f()
	}()
	select {
	case <-done:
	case <-time.After(20 * time.Second):
		buf := make([]byte, 1<<20)
		fmt.Printf("%s hang\n%s", what, buf[:runtime.Stack(buf, true)])
		os.Exit(2) // a panic would run cleanups, which would hang as well
	}
}

const (
	trafficQKey = 0x11111111
	groupQPN    = 0xffffff
)

var group = verbs.GID(netip.MustParseAddr("::ffff:239.9.9.9").As16())

// traffic is a device with a listener, and a QP that is a member of a group.
type traffic struct {
	device    *soft.Device
	transport *cm.Transport
	listener  *cm.Listener
	endpoint  *endpoint
	datagrams *uverbs.QP
	joined    atomic.Int32 // operations that have joined
}

func newTraffic(t *testing.T, d *soft.Device) *traffic {
	t.Helper()
	x := &traffic{device: d, transport: &cm.Transport{Host: d}, endpoint: newEndpoint(t, d)}
	x.listener = must((&cm.ListenConfig{Transport: x.transport}).Listen(t.Context(), d.Addrs()[0].String()+":0"))(t)
	x.datagrams = must(x.newUD())(t)
	if err := x.datagrams.AttachMulticast(group, 0); err != nil {
		t.Fatal(err)
	}
	go func() {
		for {
			r, err := x.listener.Accept(context.Background())
			if err != nil {
				return
			}
			r.Reject(nil)
		}
	}()
	return x
}

// open reports whether the device has not been closed.
func (x *traffic) open() bool {
	_, err := x.endpoint.ctx.QueryDevice()
	return err == nil
}

func (x *traffic) close(t *testing.T) {
	t.Helper()
	noHang("closing", func() {
		x.datagrams.DetachMulticast(group, 0) // fails after the removal of the device
		for _, err := range []error{x.datagrams.Close(), x.listener.Close(), x.transport.Close()} {
			if err != nil {
				t.Error(err)
			}
		}
		x.endpoint.close(t)
		if err := x.device.Close(); err != nil {
			t.Error(err)
		}
	})
}

func (x *traffic) newUD() (*uverbs.QP, error) {
	q, err := x.endpoint.pd.CreateQP(uverbs.QPOptions{Type: verbs.UD, SendCQ: x.endpoint.cq, RecvCQ: x.endpoint.cq, Cap: verbs.QPCap{MaxSendWR: 4, MaxRecvWR: 4, MaxSendSGE: 1, MaxRecvSGE: 1, MaxInline: 64}})
	if err != nil {
		return nil, err
	}
	if err := q.StartUD(1, trafficQKey); err != nil {
		q.Close()
		return nil, err
	}
	return q, nil
}

// flood sends datagrams to a QP, to the group and to the device itself, alternating, until the
// function that it returns is called.
func (x *traffic) flood(t *testing.T, to *traffic) (stop func()) {
	t.Helper()
	qp := must(x.newUD())(t)
	local := must(qp.Addr(1))(t)
	remote := must(to.datagrams.Addr(1))(t)
	one := must(x.endpoint.pd.CreateAH(remote.PathFrom(local)))(t)
	all := remote
	all.GID = group
	many := must(x.endpoint.pd.CreateAH(all.PathFrom(local)))(t)
	own := must(x.endpoint.pd.CreateAH(local.PathFrom(local)))(t)
	var ended atomic.Bool
	var sending sync.WaitGroup
	sending.Go(func() {
		for !ended.Load() {
			for _, at := range []verbs.UDAddr{one.To(remote.QPNum, trafficQKey), many.To(groupQPN, trafficQKey), own.To(x.datagrams.Num(), trafficQKey)} {
				if _, err := qp.PostSend(verbs.SendWR{Opcode: verbs.OpSend, Inline: []byte("datagram"), To: at}); err != nil {
					runtime.Gosched() // the queue is full
				}
			}
			var wcs [16]verbs.WC
			x.endpoint.cq.Poll(wcs[:])
		}
	})
	return func() {
		t.Helper()
		ended.Store(true)
		sending.Wait()
		for _, c := range []interface{ Close() error }{qp, one, many, own} {
			if err := c.Close(); err != nil {
				t.Error(err)
			}
		}
	}
}

// operations are what a program does with a device a that has a peer b.
var operations = map[string]func(a, b *traffic) error{
	"context": func(a, b *traffic) error {
		ctx, err := uverbs.Open(a.device.Name())
		if err != nil {
			return err
		}
		return ctx.Close()
	},
	"region": func(a, b *traffic) error {
		return closed(a.endpoint.pd.AllocMR(4096, verbs.AccessAll, uverbs.MROptions{}))
	},
	"completion queue": func(a, b *traffic) error {
		return closed(a.endpoint.ctx.CreateCQ(uverbs.CQOptions{Depth: 16, Channel: a.endpoint.ch}))
	},
	"shared receive queue": func(a, b *traffic) error {
		return closed(a.endpoint.pd.CreateSRQ(uverbs.SRQOptions{MaxWR: 4, MaxSGE: 1}))
	},
	"address handle": func(a, b *traffic) error {
		return closed(a.endpoint.pd.CreateAH(verbs.AddressVector{Global: true, DGID: verbs.GID(b.device.Addrs()[0].As16()), Port: 1}))
	},
	"group": func(a, b *traffic) error {
		q, err := a.newUD()
		if err != nil {
			return err
		}
		other := verbs.GID(netip.MustParseAddr("::ffff:239.9.9.10").As16())
		err = q.AttachMulticast(other, 0)
		if err == nil {
			err = q.DetachMulticast(other, 0)
		}
		return errors.Join(err, q.Close())
	},
	"last member": func(a, b *traffic) error { // of the group that b sends to
		if !a.joined.CompareAndSwap(0, 1) {
			runtime.Gosched()
			return nil
		}
		defer a.joined.Store(0)
		return errors.Join(a.datagrams.DetachMulticast(group, 0), a.datagrams.AttachMulticast(group, 0))
	},
	"datagram": func(a, b *traffic) error {
		q, err := a.newUD()
		if err != nil {
			return err
		}
		defer q.Close()
		local, err := q.Addr(1)
		if err != nil {
			return err
		}
		remote, err := b.datagrams.Addr(1)
		if err != nil {
			return err
		}
		remote.GID = group
		ah, err := a.endpoint.pd.CreateAH(remote.PathFrom(local))
		if err != nil {
			return err
		}
		_, err = q.PostSend(verbs.SendWR{Opcode: verbs.OpSend, Inline: []byte("datagram"), To: ah.To(groupQPN, trafficQKey)})
		return errors.Join(err, ah.Close())
	},
	"transfer": func(a, b *traffic) error {
		qa, err := a.endpoint.pd.CreateQP(uverbs.QPOptions{SendCQ: a.endpoint.cq, RecvCQ: a.endpoint.cq})
		if err != nil {
			return err
		}
		defer qa.Close()
		qb, err := b.endpoint.pd.CreateQP(uverbs.QPOptions{SendCQ: b.endpoint.cq, RecvCQ: b.endpoint.cq})
		if err != nil {
			return err
		}
		defer qb.Close()
		ea, err := qa.Addr(1)
		if err != nil {
			return err
		}
		eb, err := qb.Addr(1)
		if err != nil {
			return err
		}
		if err := errors.Join(qa.Connect(ea, eb, uverbs.ConnectOptions{Access: verbs.AccessAll}), qb.Connect(eb, ea, uverbs.ConnectOptions{Access: verbs.AccessAll})); err != nil {
			return err
		}
		for _, op := range []verbs.Opcode{verbs.OpRDMAWrite, verbs.OpRDMARead} {
			if _, err := qa.PostSend(verbs.SendWR{
				Opcode: op, Flags: verbs.SendSignaled, SGL: []verbs.SGE{a.endpoint.mr.SGE(0, 4096)},
				RemoteAddr: b.endpoint.mr.Addr(), RKey: b.endpoint.mr.RKey(),
			}); err != nil {
				return err
			}
		}
		return qa.Modify(verbs.QPAttr{State: verbs.StateErr}, verbs.MaskState)
	},
	"completions": func(a, b *traffic) error {
		var wcs [16]verbs.WC
		for a.endpoint.cq.Poll(wcs[:]) > 0 {
		}
		ctx, cancel := context.WithTimeout(context.Background(), time.Millisecond)
		defer cancel()
		if _, err := a.endpoint.cq.Next(ctx); errors.Is(err, syscall.EIO) {
			return err
		}
		return nil // or a flushed request
	},
	"listen": func(a, b *traffic) error {
		l, err := (&cm.ListenConfig{Transport: a.transport}).Listen(context.Background(), a.device.Addrs()[0].String()+":0")
		if err != nil {
			return err
		}
		return l.Close()
	},
	"dial": func(a, b *traffic) error {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		e, err := (&cm.Dialer{Transport: a.transport}).Dial(ctx, b.listener.Addr().String())
		if err == nil {
			e.Close()
			return errors.New("a connection that is rejected was established")
		}
		if errors.Is(err, syscall.ECONNREFUSED) || errors.Is(err, context.DeadlineExceeded) {
			return nil
		}
		return err
	},
	"counters": func(a, b *traffic) error {
		a.device.Stats()
		a.device.Resources()
		_, err := a.endpoint.ctx.QueryPort(1)
		return err
	},
}

// closed closes an object that was just made.
func closed[T interface{ Close() error }](o T, err error) error {
	if err != nil {
		return err
	}
	return o.Close()
}
