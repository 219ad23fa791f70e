package verbstest_test

import (
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/cm"
	"github.com/goverbs/verbs/uverbs"
	"github.com/goverbs/verbs/verbstest"
)

// TestLastMessage closes a side as soon as it has received: what it has received was sent, for its peer as well.
func TestLastMessage(t *testing.T) {
	for name, delay := range map[string]time.Duration{"at once": 0, "on a link": 10 * time.Microsecond} {
		t.Run(name, func(t *testing.T) {
			for range 50 {
				lastMessage(t, delay, (*cm.Endpoint).Close)
				lastMessage(t, delay, func(e *cm.Endpoint) error { e.Disconnect(); return e.Close() })
			}
		})
	}
}

func lastMessage(t *testing.T, delay time.Duration, end func(*cm.Endpoint) error) {
	synctest.Test(t, func(t *testing.T) {
		network := verbstest.NewNetwork(verbstest.Options{Link: verbstest.Link{Delay: delay}})
		client, server := verbstest.NewHost(t, network, "10.0.0.1"), verbstest.NewHost(t, network, "10.0.0.2")
		verbstest.TraceOnFailure(t, network)
		l, err := (&cm.ListenConfig{Transport: server}).Listen(t.Context(), addr)
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		received := make(chan error, 1)
		go func() {
			var mr *uverbs.MR
			e, err := func() (*cm.Endpoint, error) {
				req, err := l.Accept(t.Context())
				if err != nil {
					return nil, err
				}
				return req.Accept(t.Context(), cm.Options{Setup: postReceives(&mr, 1)})
			}()
			if err == nil {
				_, err = e.RecvCQ.Next(t.Context())
				if cerr := end(e); err == nil {
					err = cerr
				}
			}
			received <- err
		}()
		c, err := (&cm.Dialer{Transport: client}).Dial(t.Context(), addr)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		if _, err := c.QP.PostSend(verbs.SendWR{Opcode: verbs.OpSend, Flags: verbs.SendSignaled, Inline: []byte("last")}); err != nil {
			t.Fatal(err)
		}
		if _, err := c.SendCQ.Next(t.Context()); err != nil {
			t.Errorf("a message that was received: %v", err)
		}
		if err := <-received; err != nil {
			t.Error(err)
		}
	})
}

// TestLastMessages does so on many connections at a time, on one device and between two, by the real clock: other
// goroutines send the acknowledgements then.
func TestLastMessages(t *testing.T) {
	const dialers, conns = 24, 2000
	for name, addr2 := range map[string]string{"one device": "10.0.0.2", "two devices": "10.0.0.1"} {
		t.Run(name, func(t *testing.T) {
			network := verbstest.NewNetwork(verbstest.Options{})
			server := verbstest.NewHost(t, network, "10.0.0.2")
			client := server
			if addr2 != "10.0.0.2" {
				client = verbstest.NewHost(t, network, addr2)
			}
			l, err := (&cm.ListenConfig{Transport: server}).Listen(t.Context(), addr)
			if err != nil {
				t.Fatal(err)
			}
			var servers, clients sync.WaitGroup
			servers.Go(func() {
				for {
					req, err := l.Accept(t.Context())
					if err != nil {
						return
					}
					servers.Go(func() {
						var mr *uverbs.MR
						e, err := req.Accept(t.Context(), cm.Options{Setup: postReceives(&mr, 1)})
						if err == nil {
							_, err = e.RecvCQ.Next(t.Context())
							e.Close()
						}
						if err != nil {
							t.Error(err)
						}
					})
				}
			})
			var next atomic.Int64
			for range dialers {
				clients.Go(func() {
					for next.Add(1) <= conns {
						c, err := (&cm.Dialer{Transport: client}).Dial(t.Context(), addr)
						if err != nil {
							t.Error(err)
							return
						}
						_, err = c.QP.PostSend(verbs.SendWR{Opcode: verbs.OpSend, Flags: verbs.SendSignaled, Inline: []byte("last")})
						if err == nil {
							_, err = c.SendCQ.Next(t.Context())
						}
						if err != nil {
							t.Errorf("a message that was received: %v", err)
						}
						c.Close()
					}
				})
			}
			clients.Wait()
			l.Close()
			servers.Wait()
		})
	}
}
