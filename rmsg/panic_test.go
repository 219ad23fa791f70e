//go:build linux

package rmsg_test

import (
	"context"
	"errors"
	"io"
	"testing"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/internal/labtest"
	"github.com/goverbs/verbs/rmsg"
)

// nowhere is an invalid address: it has no port.
const nowhere = "10.9.0.1"

var errPanic = errors.New("panic in a callback")

// TestPanic panics in each callback of a server. Run panics, the loop is closed, its peers notice,
// and nothing is left behind.
func TestPanic(t *testing.T) {
	labtest.Each(t, func(t *testing.T, device string) {
		fail := func() { panic(errPanic) }
		for name, cb := range map[string]rmsg.Callbacks{
			"request":      {Request: func(*rmsg.Request) { fail() }},
			"established":  {Established: func(*rmsg.Conn) { fail() }},
			"message":      {Message: func(*rmsg.Conn, *rmsg.Buffer) { fail() }},
			"disconnected": {Disconnected: func(*rmsg.Conn, error) { fail() }},
		} {
			t.Run(name, func(t *testing.T) {
				before := labtest.SettledInventory(t)
				panicIn(t, device, cb)
				labtest.CheckLeaks(t, before)
			})
		}
	})
}

func panicIn(t *testing.T, device string, cb rmsg.Callbacks) {
	if cb.Request == nil {
		cb.Request = func(r *rmsg.Request) { r.Accept(nil) }
	}
	server := labtest.Must(rmsg.NewLoop(rmsg.Options{Callbacks: cb}))(t)
	panicked := make(chan any, 1)
	go func() {
		defer func() { panicked <- recover() }()
		server.Run(context.Background())
	}()
	ln := labtest.Must((&rmsg.ListenConfig{Loop: server}).Listen(t.Context(), labtest.AddrOf(device)+":0"))(t)
	c, err := rmsg.Dial(within(t), ln.Addr().String())
	if err == nil {
		defer c.Close()
		err = errors.Join(c.Send(within(t), []byte("two")), c.Send(within(t), []byte("messages")))
		c.Disconnect()
	}
	if v := <-panicked; v != errPanic {
		t.Errorf("recovered %v after %v", v, err)
	}
	if c != nil {
		<-c.Done() // nobody needs to run or to close the loop for this
		if err := c.Err(); !errors.Is(err, io.EOF) && !errors.Is(err, verbs.ErrDisconnected) && !errors.Is(err, verbs.ErrClosed) {
			t.Errorf("the peer: %v", err)
		}
	}
	if err := server.Run(within(t)); !errors.Is(err, verbs.ErrClosed) {
		t.Errorf("run after the panic: %v", err)
	}
	labtest.Check(t, server.Close())
}

// TestPanicInClose panics in a callback while the loop is closed by another one: it is the last, the loop
// is closed, and Close may be called again.
func TestPanicInClose(t *testing.T) {
	labtest.Each(t, func(t *testing.T, device string) {
		var server *rmsg.Loop
		calls := 0
		server = labtest.Must(rmsg.NewLoop(rmsg.Options{Callbacks: rmsg.Callbacks{
			Request:      func(r *rmsg.Request) { r.Accept(nil) },
			Message:      func(_ *rmsg.Conn, b *rmsg.Buffer) { b.Free(); server.Close() },
			Disconnected: func(*rmsg.Conn, error) { calls++; panic(errPanic) },
		}}))(t)
		panicked := make(chan any, 1)
		go func() {
			defer func() { panicked <- recover() }()
			server.Run(context.Background())
		}()
		ln := labtest.Must((&rmsg.ListenConfig{Loop: server}).Listen(t.Context(), labtest.AddrOf(device)+":0"))(t)
		var clients [3]*rmsg.Conn
		for i := range clients {
			clients[i] = labtest.Must(rmsg.Dial(within(t), ln.Addr().String()))(t)
			defer clients[i].Close()
		}
		labtest.Check(t, clients[0].Send(within(t), []byte("x")))
		if v := <-panicked; v != errPanic {
			t.Fatalf("recovered %v", v)
		}
		if s := server.Stats(); s.Conns+s.Devices > 0 {
			t.Errorf("the loop is not closed: %+v", s)
		}
		labtest.Check(t, server.Close(), server.Close())
		if calls != 1 {
			t.Errorf("%d callbacks, want 1", calls)
		}
	})
}
