package verbstest_test

import (
	"errors"
	"io"
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/internal/labtest"
	"github.com/goverbs/verbs/rmsg"
	"github.com/goverbs/verbs/verbstest"
)

// messengers returns two ends of a connection of rmsg between two hosts of a network.
func messengers(t *testing.T, network *verbstest.Network, client, server rmsg.Options) (dialed, accepted *rmsg.Conn) {
	client.Transport, server.Transport = verbstest.NewHost(t, network, "10.0.0.1"), verbstest.NewHost(t, network, "10.0.0.2")
	l := labtest.Must((&rmsg.ListenConfig{Options: server}).Listen(t.Context(), addr))(t)
	defer l.Close()
	return labtest.DialAccept(t, func() (*rmsg.Conn, error) { return (&rmsg.Dialer{Options: client}).Dial(t.Context(), addr) },
		func() (*rmsg.Conn, error) { return l.Accept(t.Context()) })
}

// endMessengers closes both ends, and waits for the memory that their devices keep for a while.
func endMessengers(ends ...*rmsg.Conn) {
	for _, c := range ends {
		c.Close()
	}
	for _, c := range ends {
		<-c.Done()
	}
	time.Sleep(2 * time.Minute)
}

// TestGoodbyeUnanswered loses all that a side sends once it has the answer to its goodbye: the other has
// all messages, and its own have been taken, so that nothing is an error.
func TestGoodbyeUnanswered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		network := verbstest.NewNetwork(verbstest.Options{})
		c, s := messengers(t, network, rmsg.Options{}, rmsg.Options{})
		labtest.Check(t, c.Send(t.Context(), []byte("x")))
		labtest.Must(s.Recv(t.Context()))(t).Free()
		time.Sleep(time.Second)
		server, answered := netip.MustParseAddr("10.0.0.2"), false
		network.SetFilter(func(p *verbstest.Packet) verbstest.Action {
			if p.Src.Addr() == server {
				answered = answered || p.Kind == verbstest.Send
			} else if answered {
				return verbstest.Drop
			}
			return verbstest.Pass
		})
		labtest.Check(t, c.Shutdown(t.Context()))
		if _, err := s.Recv(t.Context()); err != io.EOF {
			t.Errorf("the peer of the side that has said goodbye ends with %v, want io.EOF", err)
		}
		network.SetFilter(nil)
		endMessengers(c, s)
	})
}

// TestGoodbyeToDead disconnects without a limit, and the peer's machine fails while it has something left
// to do: KeepAlive notices.
func TestGoodbyeToDead(t *testing.T) {
	for name, leave := range map[string]func(t *testing.T, c, s *rmsg.Conn){
		"a message to read": func(t *testing.T, c, s *rmsg.Conn) { // behind one that the program keeps
			labtest.Check(t, c.Send(t.Context(), make([]byte, 100<<10)), c.Send(t.Context(), make([]byte, 100<<10)))
			b := labtest.Must(s.Recv(t.Context()))(t)
			t.Cleanup(func() { b.Free() })
		},
		"a message to send": func(t *testing.T, c, s *rmsg.Conn) { // behind one that this side does not take
			for range 2 {
				labtest.Check(t, s.Post(labtest.Must(s.Alloc(10))(t)))
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				network := verbstest.NewNetwork(verbstest.Options{})
				c, s := messengers(t, network, rmsg.Options{Linger: -1, Credits: 1}, rmsg.Options{Window: -1})
				leave(t, c, s)
				time.Sleep(time.Second)
				c.Disconnect()
				time.Sleep(time.Second)
				network.Partition(netip.MustParseAddr("10.0.0.2"))
				select {
				case <-c.Done():
					if err := c.Err(); !errors.Is(err, verbs.ErrDisconnected) {
						t.Error(err)
					}
				case <-time.After(time.Minute):
					t.Errorf("a minute after the peer's end the connection is %v", c.State())
				}
				network.Heal()
				endMessengers(c, s)
			})
		})
	}
}
