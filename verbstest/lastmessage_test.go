package verbstest_test

import (
	"context"
	"errors"
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

// TestLastMessage closes a side as soon as it has received: what it has received was sent, for its
// peer as well.
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

// receiveLast accepts a connection, and ends it as soon as it has received.
func receiveLast(ctx context.Context, req *cm.Request, end func(*cm.Endpoint) error) error {
	var mr *uverbs.MR
	e, err := req.Accept(ctx, cm.Options{Setup: postReceives(&mr, 1)})
	if err != nil {
		return err
	}
	_, err = e.RecvCQ.Next(ctx)
	return errors.Join(err, end(e))
}

// sendLast sends a message on a connection of its own, which arrives.
func sendLast(ctx context.Context, client *cm.Transport) error {
	c, err := (&cm.Dialer{Transport: client}).Dial(ctx, addr)
	if err != nil {
		return err
	}
	_, err = c.QP.PostSend(verbs.SendWR{Opcode: verbs.OpSend, Flags: verbs.SendSignaled, Inline: []byte("last")})
	if err == nil {
		_, err = c.SendCQ.Next(ctx)
	}
	return errors.Join(err, c.Close())
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
			req, err := l.Accept(t.Context())
			if err == nil {
				err = receiveLast(t.Context(), req, end)
			}
			received <- err
		}()
		if err := sendLast(t.Context(), client); err != nil {
			t.Errorf("a message that was received: %v", err)
		}
		if err := <-received; err != nil {
			t.Error(err)
		}
	})
}

// TestLastMessages does so on many connections at a time, on one device and between two, by the
// real clock: other goroutines send the acknowledgements then.
func TestLastMessages(t *testing.T) {
	const dialers, conns = 24, 2000
	for name, both := range map[string]bool{"one device": false, "two devices": true} {
		t.Run(name, func(t *testing.T) {
			network := verbstest.NewNetwork(verbstest.Options{})
			server := verbstest.NewHost(t, network, "10.0.0.2")
			client := server
			if both {
				client = verbstest.NewHost(t, network, "10.0.0.1")
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
						if err := receiveLast(t.Context(), req, (*cm.Endpoint).Close); err != nil {
							t.Error(err)
						}
					})
				}
			})
			var next atomic.Int64
			for range dialers {
				clients.Go(func() {
					for next.Add(1) <= conns {
						if err := sendLast(t.Context(), client); err != nil {
							t.Errorf("a message that was received: %v", err)
						}
					}
				})
			}
			clients.Wait()
			l.Close()
			servers.Wait()
		})
	}
}
