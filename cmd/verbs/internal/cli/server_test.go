package cli

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"strings"
	"syscall"
	"testing"

	"github.com/goverbs/verbs/internal/labtest"
)

// scarce is a listener whose process lacks files for some connections, and then not any more.
type scarce struct {
	net.Listener
	failures int
}

func (l *scarce) Accept() (net.Conn, error) {
	if l.failures > 0 {
		l.failures--
		return nil, &net.OpError{Op: "accept", Net: "tcp", Err: os.NewSyscallError("accept4", syscall.EMFILE)}
	}
	return l.Listener.Accept()
}

// TestServer goes on after temporary errors, refuses the clients that are too many, serves another
// when one has left, and ends with the context or with an error that is not temporary.
func TestServer(t *testing.T) {
	l := &scarce{Listener: labtest.Must(net.Listen("tcp", "127.0.0.1:0"))(t), failures: 3}
	ctx, cancel := context.WithCancel(t.Context())
	var logged []error
	s := Server{
		Most:   2,
		Handle: func(_ context.Context, c net.Conn) { io.WriteString(c, "hello\n"); io.Copy(io.Discard, c) },
		Refuse: func(c net.Conn, why error) { io.WriteString(c, why.Error()+"\n") },
		Log:    func(err error) { logged = append(logged, err) },
	}
	ended := make(chan error, 1)
	go func() { ended <- s.Serve(ctx, l) }()
	dial := func() (net.Conn, string) {
		c := labtest.Must(net.Dial("tcp", l.Addr().String()))(t)
		b := make([]byte, 100)
		n, err := c.Read(b)
		if err != nil {
			t.Fatal(err)
		}
		return c, string(b[:n])
	}
	a, first := dial()
	b, second := dial()
	c, third := dial()
	if first != "hello\n" || second != "hello\n" || !strings.Contains(third, "has 2 clients") {
		t.Errorf("%q, %q, %q", first, second, third)
	}
	c.Close()
	a.Close()
	for answer := third; answer != "hello\n"; { // the server learns of the end a little later
		a, answer = dial()
		defer a.Close()
	}
	cancel()
	b.Close()
	a.Close()
	if err := <-ended; err != nil || len(logged) != 3 {
		t.Errorf("%v; logged %v", err, logged)
	}
	l.Listener.Close()
	if err := s.Serve(t.Context(), l); !errors.Is(err, net.ErrClosed) {
		t.Errorf("a listener that is closed: %v", err)
	}
}

// TestJoin accepts connections of two listeners, and ends with a connection that nobody has taken.
func TestJoin(t *testing.T) {
	a, b := labtest.Must(net.Listen("tcp", "127.0.0.1:0"))(t), labtest.Must(net.Listen("tcp", "127.0.0.1:0"))(t)
	l := Join(a, b)
	if l.Addr() != a.Addr() {
		t.Errorf("address %v, want %v", l.Addr(), a.Addr())
	}
	for _, from := range []net.Listener{b, a, b} {
		c := labtest.Must(net.Dial("tcp", from.Addr().String()))(t)
		defer c.Close()
		got := labtest.Must(l.Accept())(t)
		if got.RemoteAddr().String() != c.LocalAddr().String() {
			t.Errorf("connection of %v, want %v", got.RemoteAddr(), c.LocalAddr())
		}
		got.Close()
	}
	c := labtest.Must(net.Dial("tcp", a.Addr().String()))(t)
	defer c.Close()
	if err := errors.Join(l.Close(), l.Close()); err != nil {
		t.Error(err)
	}
	if n, err := c.Read(make([]byte, 1)); err == nil {
		t.Errorf("%d bytes of a connection that nobody has taken", n)
	}
	if _, err := l.Accept(); !errors.Is(err, net.ErrClosed) {
		t.Error(err)
	}
}
