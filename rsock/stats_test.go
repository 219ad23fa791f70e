//go:build linux

package rsock_test

import (
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/goverbs/verbs/cm"
	"github.com/goverbs/verbs/internal/labtest"
	"github.com/goverbs/verbs/rsock"
)

// TestConnStats compares the statistics of both ends with what was sent and waited for.
func TestConnStats(t *testing.T) {
	labtest.Each(t, func(t *testing.T, device string) {
		opt := rsock.Options{ReadBuffer: 16 << 10, WriteBuffer: 8 << 10, SendQueue: 32, RecvQueue: 64}
		a, b := connect(t, device, opt)
		if s := a.Stats(); s.ReadBuffer != 16<<10 || s.WriteBuffer != 8<<10 || s.SendQueue != 32 || s.RecvQueue != 64 || s.BytesSent != 0 {
			t.Errorf("at the start: %+v", s)
		}
		// b does not read at first, so the writer waits for it.
		const total = 100_000
		written := make(chan error, 1)
		go func() { _, err := a.Write(randomBytes(total)); written <- err }()
		labtest.Until(t, "the writer to wait", func() bool { return a.Stats().PeerWaits > 0 })
		var s rsock.ConnStats
		labtest.Until(t, "the reader's buffer to fill, and the writer to have waited", func() bool {
			s = a.Stats()
			return s.PeerRoom == 0 && s.PeerWaitTime >= 100*time.Millisecond && b.Stats().BytesReceived >= 8<<10
		})
		if s.BytesSent < 8<<10 || s.BytesSent > 16<<10 || s.PeerWaits == 0 {
			t.Errorf("while the peer does not read: %+v", s)
		}
		if s := b.Stats(); s.BytesReceived < 8<<10 || s.BytesReceived != uint64(s.Unread) || s.MessagesReceived == 0 {
			t.Errorf("the peer, which has called nothing: %+v", s)
		}
		if _, err := io.CopyN(io.Discard, b, total); err != nil {
			t.Fatal(err)
		}
		if err := <-written; err != nil {
			t.Fatal(err)
		}
		if err := a.CloseWrite(); err != nil {
			t.Fatal(err)
		}
		if _, err := io.Copy(io.Discard, b); err != nil {
			t.Fatal(err)
		}
		sa, sb := a.Stats(), b.Stats()
		if sa.BytesSent != total || sb.BytesReceived != total || sb.Unread != 0 || sa.BytesReceived != 0 {
			t.Errorf("sent %+v, received %+v", sa, sb)
		}
		if sa.MessagesSent < total/(8<<10) || sa.MessagesSent != sb.MessagesReceived {
			t.Errorf("%d messages sent, %d received", sa.MessagesSent, sb.MessagesReceived)
		}
		if sa.PeerWaits == 0 || sa.PeerWaitTime < 100*time.Millisecond || sa.PeerWaitTime > time.Minute || sa.Sleeps == 0 || sa.Wakeups < sa.Sleeps {
			t.Errorf("waits: %+v", sa)
		}
		if sa.Credits <= 0 || sa.Credits > 64 || sa.SendQueued < 0 || sa.SendQueued > 32 || sa.Unsent < 0 || sa.Unsent > 8<<10 {
			t.Errorf("room: %+v", sa)
		}
		if err := a.Close(); err != nil {
			t.Error(err)
		}
		b.Close()
		if after := a.Stats(); after.BytesSent != total || after.Unsent != 0 || after.SendQueued != 0 {
			t.Errorf("after Close: %+v", after)
		}
	})
}

// TestQuietStats reads the statistics of two ends whose programs call nothing: what has arrived is
// counted.
func TestQuietStats(t *testing.T) {
	labtest.Each(t, func(t *testing.T, device string) {
		a, b := connect(t, device, rsock.Options{WriteBuffer: 8 << 10, KeepAlive: -1})
		labtest.Must(a.Write(randomBytes(8 << 10)))(t) // in four messages, of which each is signaled
		labtest.Until(t, "the data to arrive", func() bool { return b.Stats().Unread == 8<<10 })
		labtest.Until(t, "its acknowledgement", func() bool {
			s := a.Stats()
			// On iWARP the last message, behind the data, has no completion.
			return s.Unsent == 0 && (s.SendQueued == 0 || s.SendQueued == 1 && labtest.IWARP(t, device))
		})
	})
}

// TestListenerStats compares a listener's statistics and log with what peers did.
func TestListenerStats(t *testing.T) {
	labtest.Each(t, func(t *testing.T, device string) {
		var log labtest.Log
		l := labtest.Must((&rsock.ListenConfig{Logger: log.Logger()}).Listen(ctx, "rdma", labtest.AddrOf(device)+":0"))(t)
		defer l.Close()
		wait := func(want rsock.ListenerStats) {
			t.Helper()
			labtest.Until(t, fmt.Sprintf("%+v", want), func() bool {
				got := l.(*rsock.Listener).Stats()
				got.Conns = rsock.ConnStats{} // TestSums tests these
				return got == want
			})
		}
		badPeer := cm.Dialer{Options: cm.Options{PrivateData: []byte("hello")}}
		if e, err := badPeer.Dial(ctx, l.Addr().String()); err == nil {
			e.Close()
			t.Error("a peer without a valid hello was accepted")
		}
		wait(rsock.ListenerStats{Rejected: 1})
		log.Want(t, "level=WARN", `msg="rejected peer"`, "remote="+labtest.AddrOf(device), "protocol violation by the peer (rsockets)")

		d := rsock.Dialer{Logger: log.Logger()}
		c := labtest.Must(d.Dial("rdma", l.Addr().String()))(t)
		log.Want(t, "level=DEBUG", "msg=connected", "device="+device, "local="+c.LocalAddr().String(), "remote="+l.Addr().String())
		wait(rsock.ListenerStats{Rejected: 1, Pending: 1})
		s := labtest.Must(l.Accept())(t)
		log.Want(t, "level=DEBUG", "msg=accepted", "device="+device, "local="+l.Addr().String())
		wait(rsock.ListenerStats{Rejected: 1, Accepted: 1, Open: 1})
		go c.Write([]byte("x"))
		io.ReadFull(s, make([]byte, 1))
		c.(*rsock.Conn).SetLinger(0)
		c.Close()
		log.Want(t, "level=DEBUG", `msg="connection closed"`, "local="+c.LocalAddr().String(), "sent=1")
		s.SetDeadline(time.Now().Add(20 * time.Second))
		if _, err := s.Read(make([]byte, 1)); err == nil {
			t.Error("read from a connection that was broken")
		}
		log.Want(t, "level=DEBUG", `msg="connection failed"`, "local="+s.LocalAddr().String(), "connection reset by peer")
		s.Close()
		wait(rsock.ListenerStats{Rejected: 1, Accepted: 1})

		c = labtest.Must(rsock.Dial("rdma", l.Addr().String()))(t)
		defer c.Close()
		wait(rsock.ListenerStats{Rejected: 1, Accepted: 1, Pending: 1})
		l.Close()
		wait(rsock.ListenerStats{Rejected: 1, Accepted: 1})
	})
}

// TestSums compares the sums of a listener and a dialer with what their connections carried.
// While connections come and go, no counter falls.
func TestSums(t *testing.T) {
	labtest.Each(t, func(t *testing.T, device string) {
		const conns, most = 20, 30_000
		l := labtest.Must(rsock.Listen("rdma", labtest.AddrOf(device)+":0"))(t).(*rsock.Listener)
		defer l.Close()
		var d rsock.Dialer
		var clients, servers, watchers sync.WaitGroup
		servers.Go(func() {
			for c, err := l.Accept(); err == nil; c, err = l.Accept() {
				servers.Go(func() {
					defer c.Close()
					if _, err := io.Copy(c, c); err != nil {
						t.Error(err)
					}
				})
			}
		})
		done := make(chan struct{})
		for _, sums := range []func() rsock.ConnStats{
			func() rsock.ConnStats { return l.Stats().Conns },
			func() rsock.ConnStats { return d.Stats().Conns },
		} {
			watchers.Go(func() {
				var before []uint64
				for {
					s := sums()
					now := []uint64{s.BytesReceived, s.BytesSent, s.MessagesReceived, s.MessagesSent, s.PeerWaits,
						uint64(s.PeerWaitTime), s.QueueWaits, uint64(s.QueueWaitTime), s.Spins, s.Sleeps, s.Wakeups}
					for i := range before {
						if now[i] < before[i] {
							t.Errorf("a counter fell: %v after %v", now, before)
							return
						}
					}
					before = now
					select {
					case <-done:
						return
					case <-time.After(50 * time.Microsecond):
					}
				}
			})
		}
		total := 0
		for i := range conns {
			n := 1 + i*most/conns
			total += n
			clients.Go(func() {
				c, err := d.Dial("rdma", l.Addr().String())
				if err != nil {
					t.Error(err)
					return
				}
				defer c.Close()
				b := randomBytes(n)
				c.Write(b)
				if _, err := io.ReadFull(c, b); err != nil {
					t.Error(err)
				}
			})
		}
		clients.Wait()
		c := labtest.Must(d.Dial("rdma", l.Addr().String()))(t).(*rsock.Conn)
		if s := d.Stats(); s.Open != 1 || s.Conns.ReadBuffer != c.Stats().ReadBuffer || s.Conns.Credits == 0 {
			t.Errorf("with an open connection: %+v", s)
		}
		labtest.Until(t, "Accept to return", func() bool { return l.Stats().Accepted == conns+1 })
		c.Close()
		l.Close()
		servers.Wait()
		if _, err := d.Dial("rdma", l.Addr().String()); err == nil {
			t.Error("connected to a closed listener")
		}
		close(done)
		watchers.Wait()
		labtest.Until(t, "the background to close what was accepted", func() bool { return l.Stats().Open == 0 })
		ls, ds := l.Stats(), d.Stats()
		if ls.Open != 0 || ls.Accepted != conns+1 || ds.Open != 0 || ds.Dials != conns+2 || ds.Failed != 1 || ds.DialedTCP != 0 {
			t.Errorf("%+v, %+v", ls, ds)
		}
		for _, s := range []rsock.ConnStats{ls.Conns, ds.Conns} {
			if s.BytesSent != uint64(total) || s.BytesReceived != uint64(total) || s.MessagesSent < conns || s.Sleeps+s.Spins == 0 || s.ReadBuffer != 0 || s.SendQueue != 0 {
				t.Errorf("%d bytes went each way: %+v", total, s)
			}
		}
		if ls.Conns.MessagesSent != ds.Conns.MessagesReceived {
			t.Errorf("%+v, %+v", ls.Conns, ds.Conns)
		}
	})
}

// TestErrorsOfClosed tests that the errors of a closed connection are like
// [net.TCPConn]'s.
func TestErrorsOfClosed(t *testing.T) {
	labtest.Each(t, func(t *testing.T, device string) {
		a, b := connect(t, device, rsock.Options{})
		a.SetLinger(0)
		a.Close()
		_, err := a.ReadFrom(io.LimitReader(zeros{}, 1))
		wantClosed(t, err, "readfrom", a)
		_, err = a.WriteTo(io.Discard)
		wantClosed(t, err, "writeto", a)
		wantClosed(t, a.SetNoDelay(true), "set", a)
		wantClosed(t, a.SetKeepAlive(true), "set", a)
		b.Close()
	})
}

type zeros struct{}

func (zeros) Read(b []byte) (int, error) { clear(b); return len(b), nil }

// wantClosed checks an error of a closed connection.
func wantClosed(t *testing.T, err error, op string, c net.Conn) {
	t.Helper()
	e, ok := err.(*net.OpError)
	if !ok || e.Op != op || e.Net != "rdma" || e.Source != c.LocalAddr() || e.Addr != c.RemoteAddr() || !errors.Is(err, net.ErrClosed) {
		t.Errorf("%s: %v", op, err)
	}
}
