package harness

import (
	"context"
	"errors"
	"io"
	"maps"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/cm"
	"github.com/goverbs/verbs/internal/labtest"
	"github.com/goverbs/verbs/rconn"
	"github.com/goverbs/verbs/rmsg"
	"github.com/goverbs/verbs/rsock"
	"github.com/goverbs/verbs/tests/workload"
)

// connPair opens both ends of a connection and calls ready when it is established. It blocks
// until both ends have ended, closes only what the documentation of its layer requires, and
// returns the reasons why they ended.
type connPair func(ctx context.Context, addr string, busy bool, ready func()) [2]error

// runPair calls ready and runs both ends until they end.
func runPair(ready func(), client, server func() error) (errs [2]error) {
	var ends sync.WaitGroup
	ends.Go(func() { errs[0] = client() })
	ends.Go(func() { errs[1] = server() })
	ready()
	ends.Wait()
	return errs
}

// connPairs are the layers, by name. Their connections must be closed, except for those of rmsg:
// the loop closes them, and continues with other devices.
var connPairs = map[string]struct {
	run  func(t *testing.T) connPair
	want []error
}{
	"cm":    {cmPair, []error{verbs.ErrDeviceRemoved, verbs.ErrDisconnected}},
	"rconn": {rconnPair, []error{verbs.ErrDeviceRemoved, verbs.ErrDisconnected}},
	"rmsg":  {rmsgPair, []error{verbs.ErrDeviceRemoved, verbs.ErrDisconnected, rmsg.ErrUnreadable}},
	"rsock": {rsockPair, []error{unix.ECONNRESET, io.EOF}},
}

func cmPair(t *testing.T) connPair {
	return func(ctx context.Context, addr string, busy bool, ready func()) [2]error {
		l := labtest.Made(cm.Listen(ctx, addr))(t)
		accepted := make(chan *cm.Endpoint, 1)
		opt := cm.Options{Setup: func(e *cm.Endpoint) error {
			mr, err := e.AllocMR(1<<16, verbs.AccessLocalWrite)
			for range 32 {
				if err == nil {
					_, err = e.QP.PostRecv(verbs.RecvWR{SGL: []verbs.SGE{mr.SGE(0, 1<<16)}})
				}
			}
			return err
		}}
		go func() {
			r := labtest.Must(l.Accept(ctx))(t)
			accepted <- labtest.Must(r.Accept(ctx, opt))(t)
		}()
		c := labtest.Must((&cm.Dialer{Options: opt}).Dial(ctx, l.Addr().String()))(t)
		s := <-accepted
		wait := func(e *cm.Endpoint) func() error {
			return func() error {
				if busy {
					mr := labtest.Must(e.AllocMR(1<<16, verbs.AccessLocalWrite))(t)
					for range 16 {
						e.QP.PostSend(verbs.SendWR{Opcode: verbs.OpSend, SGL: []verbs.SGE{mr.SGE(0, 1<<16)}})
					}
				}
				<-e.Done()
				return errors.Join(e.Err(), e.Close())
			}
		}
		return runPair(ready, wait(c), wait(s))
	}
}

// polledPair is cmPair for ends that look at nothing but their completions.
func polledPair(t *testing.T) connPair {
	return func(ctx context.Context, addr string, _ bool, ready func()) [2]error {
		opt := cm.Options{Setup: func(e *cm.Endpoint) error {
			_, err := e.QP.PostRecv(verbs.RecvWR{})
			return err
		}}
		c, s := labtest.Connect(ctx, t, addr, opt, opt)
		poll := func(e *cm.Endpoint) func() error {
			return func() error {
				for ctx.Err() == nil {
					var wcs [16]verbs.WC
					if n := e.RecvCQ.Poll(wcs[:]); n > 0 {
						return errors.Join(e.Reason(ctx, wcs[0].Err()), e.Close())
					}
					time.Sleep(time.Millisecond)
				}
				return errors.Join(ctx.Err(), e.Close())
			}
		}
		return runPair(ready, poll(c), poll(s))
	}
}

func rconnPair(t *testing.T) connPair {
	return func(ctx context.Context, addr string, busy bool, ready func()) [2]error {
		l := labtest.Made(rconn.Listen(ctx, addr))(t)
		accepted := make(chan *rconn.Conn, 1)
		var region *rconn.LocalRegion
		go func() {
			r := labtest.Must(l.Accept(ctx))(t)
			accepted <- labtest.Must(r.Accept(ctx, rconn.Options{Setup: func(c *rconn.Conn) (err error) {
				if region, err = c.Alloc(1<<20, rconn.ReadWrite); err == nil {
					err = c.Announce(1, region.All())
				}
				return err
			}}))(t)
		}()
		c := labtest.Must(rconn.Dial(ctx, l.Addr().String()))(t)
		s := <-accepted
		wait := func(c *rconn.Conn) error { return c.AwaitDisconnect(ctx) }
		return runPair(ready, func() (err error) {
			for busy && err == nil {
				err = c.Put(ctx, c.Adverts()[0].At(0), make([]byte, 1<<20))
			}
			return errors.Join(err, wait(c), c.Err(), c.Close())
		}, func() error { return errors.Join(wait(s), s.Err(), s.Close()) })
	}
}

func rmsgPair(t *testing.T) connPair {
	loop := func() *rmsg.Loop {
		l, end, err := workload.RunLoop(rmsg.Options{})
		labtest.Check(t, err)
		t.Cleanup(func() {
			if err := end(); err != nil {
				t.Error(err)
			}
		})
		return l
	}
	client, server := loop(), loop()
	return func(ctx context.Context, addr string, busy bool, ready func()) [2]error {
		l := labtest.Made((&rmsg.ListenConfig{Loop: server}).Listen(ctx, addr))(t)
		c, s := labtest.DialAccept(t, func() (*rmsg.Conn, error) {
			return (&rmsg.Dialer{Loop: client}).Dial(ctx, l.Addr().String())
		}, func() (*rmsg.Conn, error) { return l.Accept(ctx) })
		return runPair(ready, func() (err error) {
			for i := 0; busy && err == nil; i++ {
				err = c.Send(ctx, make([]byte, i*1000%100_000))
			}
			<-c.Done()
			return c.Err()
		}, func() error {
			if busy { // and received messages are not read
				time.Sleep(100 * time.Millisecond)
			}
			<-s.Done()
			return s.Err()
		})
	}
}

func rsockPair(t *testing.T) connPair {
	return func(ctx context.Context, addr string, busy bool, ready func()) [2]error {
		l := labtest.Made(rsock.Listen("rdma", addr))(t)
		accepted := make(chan io.ReadWriteCloser, 1)
		go func() { accepted <- labtest.Must(l.Accept())(t) }()
		c := labtest.Must(rsock.Dial("rdma", l.Addr().String()))(t)
		s := <-accepted
		read := func(c io.ReadCloser) error {
			b := make([]byte, 1<<16)
			for {
				if _, err := c.Read(b); err != nil {
					return errors.Join(err, c.Close())
				}
			}
		}
		return runPair(ready, func() (err error) {
			for busy && err == nil {
				_, err = c.Write(make([]byte, 1<<16))
			}
			return errors.Join(err, read(c))
		}, func() error { return read(s) })
	}
}

// TestRemovalReleases deletes a device that a layer uses, idle and busy: connections end. The
// kernel waits until all processes have closed rxe and siw, which must happen soon after; it does
// not wait for an adapter, whose removal also ends a program that only polls.
func TestRemovalReleases(t *testing.T) {
	labtest.RequireGuest(t, "removes the machine's devices")
	// The layers keep an idle device for 250 ms; an adapter's removal takes seconds on a busy
	// machine.
	const soon = 30 * time.Second
	for _, device := range labtest.Addressed() {
		layers := maps.Clone(connPairs)
		if isAdapter(device) {
			polled := layers["cm"]
			polled.run = polledPair
			layers["polled"] = polled
		}
		for name, u := range layers {
			for state, busy := range map[string]bool{"idle": false, "busy": true} {
				t.Run(device+"/"+name+"/"+state, func(t *testing.T) {
					ctx := labtest.Within(t, roundTimeout)
					use := u.run(t)
					e := &env{T: t, device: device}
					for range 2 { // loops continue when the device exists again
						deleted := make(chan error, 1)
						remove := e.remover()
						var start time.Time
						errs := use(ctx, labtest.AddrOf(device)+":0", busy, func() {
							time.Sleep(50 * time.Millisecond)
							start = time.Now()
							go func() { deleted <- remove() }()
						})
						told := time.Since(start)
						for _, err := range errs {
							if !isAny(err, u.want) {
								t.Errorf("an end ended with %v", err)
							}
						}
						select {
						case err := <-deleted:
							if err != nil {
								t.Fatal(err)
							}
							t.Logf("the ends ended after %v, the device was deleted after %v", told, time.Since(start))
							e.addDevice()
						case <-time.After(soon):
							t.Fatalf("the device is there %v after the ends have ended", soon)
						}
					}
				})
			}
		}
	}
}

// TestRemovalAtOnce deletes a device that a transport holds open without a time limit: the
// transport closes the device with the last connection that the removal has ended, and without
// connections in CloseIdle.
func TestRemovalAtOnce(t *testing.T) {
	labtest.RequireGuest(t, "removes the machine's devices")
	labtest.Each(t, func(t *testing.T, device string) {
		ctx, cancel := context.WithTimeout(t.Context(), roundTimeout)
		defer cancel()
		e := &env{T: t, device: device}
		cm.DefaultTransport().CloseIdle()
		tr := &cm.Transport{IdleTimeout: -1}
		labtest.Close(t, tr)
		for _, connected := range []bool{true, false} {
			l := labtest.Must((&cm.ListenConfig{Transport: tr}).Listen(ctx, labtest.AddrOf(device)+":0"))(t)
			accepted := make(chan *cm.Endpoint, 1)
			go func() {
				r := labtest.Must(l.Accept(ctx))(t)
				accepted <- labtest.Must(r.Accept(ctx, cm.Options{}))(t)
			}()
			ends := []*cm.Endpoint{labtest.Must((&cm.Dialer{Transport: tr}).Dial(ctx, l.Addr().String()))(t), <-accepted}
			l.Close()
			close := func() {
				for _, e := range ends {
					if err := e.Close(); err != nil {
						t.Error(err)
					}
				}
			}
			if !connected {
				close()
			}
			deleted := make(chan error, 1)
			remove := e.remover()
			go func() { deleted <- remove() }()
			if connected {
				for _, e := range ends {
					<-e.Done()
				}
				close()
			} else {
				time.Sleep(time.Second)
				if n := tr.Stats().Devices; n != 1 {
					t.Errorf("%d devices are open", n)
				}
				tr.CloseIdle()
			}
			select {
			case err := <-deleted:
				if err != nil {
					t.Fatal(err)
				}
				e.addDevice()
			case <-ctx.Done():
				t.Fatal("the device is still there")
			}
		}
	})
}

func isAny(err error, targets []error) bool {
	for _, target := range targets {
		if errors.Is(err, target) {
			return true
		}
	}
	return false
}
