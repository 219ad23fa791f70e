package interop

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/goverbs/verbs/internal/labtest"
	"github.com/goverbs/verbs/rsock"
)

// rsPorts is the last port used: every run has a port of its own.
var rsPorts = 7600

// rstream describes a run of C's rstream: rounds of count messages in each direction, each
// of size bytes, after a round of one message of 16 bytes for synchronization.
type rstream struct {
	rounds, count, size int
	verify              bool // the data counts up
	args                []string
}

func (r rstream) options() []string {
	args := append([]string{"-I", strconv.Itoa(r.rounds), "-C", strconv.Itoa(r.count), "-S", strconv.Itoa(r.size)}, r.args...)
	if r.verify {
		args = append(args, "-T", "v")
	}
	return args
}

// countingConn writes and reads bytes that count up, over all messages.
type countingConn struct {
	net.Conn
	verify    bool
	out, back byte
	buf       []byte
}

func (c *countingConn) send(n int) error {
	for i := range c.buf[:n] {
		c.buf[i] = c.out
		c.out++
	}
	_, err := c.Write(c.buf[:n])
	return err
}

func (c *countingConn) recv(n int) error {
	if _, err := io.ReadFull(c, c.buf[:n]); err != nil {
		return err
	}
	for i, v := range c.buf[:n] {
		if c.verify && v != c.back {
			return fmt.Errorf("byte %d of a message is %d, not %d", i, v, c.back)
		}
		c.back++
	}
	return nil
}

// run runs the Go side.
func (r rstream) run(conn net.Conn, server bool) error {
	defer conn.Close()
	conn.SetDeadline(time.Now().Add(50 * time.Second))
	c := &countingConn{Conn: conn, verify: r.verify, buf: make([]byte, max(r.size, 16))}
	there, back := c.send, c.recv
	if server {
		there, back = back, there
	}
	run := func(rounds, count, size int) error {
		for range rounds {
			for _, step := range []func(int) error{there, back} {
				for range count {
					if err := step(size); err != nil {
						return err
					}
				}
			}
		}
		return nil
	}
	if err := run(1, 1, 16); err != nil {
		return fmt.Errorf("synchronization: %w", err)
	}
	if err := run(r.rounds, r.count, r.size); err != nil {
		return err
	}
	if server { // C must end first: its poll takes our end for a failure
		if n, err := conn.Read(c.buf); n != 0 || err != io.EOF {
			return fmt.Errorf("at the end: %d bytes, %v", n, err)
		}
	}
	return conn.Close()
}

// rsListen listens on a port of its own.
func rsListen(t *testing.T, device string, opt rsock.Options) (l net.Listener, port string) {
	t.Helper()
	rsPorts++
	port = strconv.Itoa(rsPorts)
	l = labtest.Must((&rsock.ListenConfig{Options: opt}).Listen(t.Context(), "rdma", net.JoinHostPort(labtest.AddrOf(device), port)))(t)
	t.Cleanup(func() { l.Close() })
	return l, port
}

// acceptFrom accepts the connection of a program that dials l.
func (p *program) acceptFrom(l net.Listener) *rsock.Conn {
	p.T.Helper()
	timeout := time.AfterFunc(30*time.Second, func() { l.Close() })
	defer timeout.Stop()
	conn, err := l.Accept()
	if err != nil {
		p.Kill()
		p.T.Fatalf("%v: %v, %v", p.Cmd, err, p.Err)
	}
	return conn.(*rsock.Conn)
}

// rsDial starts a C program as a server, which grants credits immediately, and dials it.
func rsDial(t *testing.T, device string, opt rsock.Options, serve func(port string) *program) (p *program, conn *rsock.Conn) {
	t.Helper()
	err := retryErrMPA(t, func() error {
		rsPorts++
		port := strconv.Itoa(rsPorts)
		p = serve(port)
		labtest.WaitListening(t, port)
		ctx := labtest.Within(t, 20*time.Second)
		c, err := (&rsock.Dialer{Options: opt}).DialContext(ctx, "rdma", net.JoinHostPort(labtest.AddrOf(device), port))
		if err != nil {
			p.Kill()
			return err
		}
		conn = c.(*rsock.Conn)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return p, conn
}

// rsAccept listens, starts a C program that dials the listener, and accepts.
func rsAccept(t *testing.T, device string, opt rsock.Options, dial func(port string) *program) (*program, *rsock.Conn) {
	t.Helper()
	for try := 1; ; try++ {
		l, port := rsListen(t, device, opt)
		p := dial(port)
		conn := p.acceptFrom(l)
		if !siwMissedData(t, device) || try == 10 {
			return p, conn
		}
		p.Kill()
		conn.Close()
	}
}

// acceptClient starts C's client and accepts its connection.
func (r rstream) acceptClient(t *testing.T, device string, opt rsock.Options) (*program, *rsock.Conn) {
	t.Helper()
	return rsAccept(t, device, opt, func(port string) *program {
		return start(t, "rstream", append([]string{"-s", labtest.AddrOf(device), "-p", port}, r.options()...)...)
	})
}

// serveC runs C's client with a Go server, and dialC a Go client with C's
// server.
func (r rstream) serveC(t *testing.T, device string, opt rsock.Options) {
	t.Helper()
	client, conn := r.acceptClient(t, device, opt)
	if err := r.run(conn, true); err != nil {
		t.Error(err)
	}
	client.Wait()
}

func (r rstream) dialC(t *testing.T, device string, opt rsock.Options) {
	t.Helper()
	server, conn := rsDial(t, device, opt, func(port string) *program {
		return start(t, "rstream", append([]string{"-b", labtest.AddrOf(device), "-p", port}, r.options()...)...)
	})
	if err := r.run(conn, false); err != nil {
		t.Error(err)
	}
	server.Wait()
}

// rsConfigure sets C's defaults for all programs that start until the test ends.
func rsConfigure(t *testing.T, values map[string]string) {
	t.Helper()
	const dir = "/etc/rdma/rsocket"
	labtest.Check(t, os.MkdirAll(dir, 0o755))
	for name, v := range values {
		path := filepath.Join(dir, name)
		labtest.Check(t, os.WriteFile(path, []byte(v+"\n"), 0o644))
		t.Cleanup(func() { os.Remove(path) })
	}
}

// TestRstream runs rstream's protocol with C on either side. Both sides compare the data
// that they receive.
func TestRstream(t *testing.T) {
	labtest.RequireKernel(t)
	labtest.Each(t, func(t *testing.T, device string) {
		var def rsock.Options
		tiny := rsock.Options{SendQueue: 16, RecvQueue: 16, ReadBuffer: 4096, WriteBuffer: 4096, SpinTime: -1}
		large := rsock.Options{SendQueue: 1000, RecvQueue: 2000, ReadBuffer: 1 << 20, WriteBuffer: 3 << 20, Inline: -1}
		growing := rsock.Options{IdleBuffer: 4096}
		ctiny := map[string]string{"sqsize_default": "16", "rqsize_default": "16"}
		for _, r := range labtest.Few(4, []struct {
			name string
			rstream
			opt rsock.Options
			c   map[string]string
		}{
			{"polling", rstream{10, 50, 5000, true, []string{"-T", "a"}}, def, nil},
			{"small queues", rstream{3, 300, 100, true, []string{"-B", "4096"}}, tiny, ctiny},
			{"Go's large buffers, C's small queues", rstream{2, 3, 1 << 20, true, []string{"-T", "b"}}, large, ctiny},
			{"Go's growing buffers", rstream{3, 4, 1 << 20, true, []string{"-T", "b"}}, growing, nil},
			{"one byte", rstream{500, 1, 1, true, nil}, def, nil},
			{"nonblocking", rstream{10, 50, 5000, true, []string{"-T", "n"}}, def, nil},
			{"blocking", rstream{10, 50, 5000, true, []string{"-T", "b"}}, def, nil},
			{"resolving", rstream{5, 10, 100, true, []string{"-T", "r"}}, def, nil},
			{"keepalive", rstream{5, 10, 100, true, []string{"-k", "1"}}, def, nil},
			{"large", rstream{1, 4, 4 << 20, true, nil}, def, nil},
			{"C's small buffers", rstream{5, 20, 30000, true, []string{"-B", "4096", "-T", "b"}}, def, nil},
			{"Go's small buffers and queues", rstream{2, 20, 30000, true, []string{"-T", "b"}}, tiny, nil},
			{"Go's large buffers and queues", rstream{1, 5, 1 << 20, true, nil}, large, nil},
			{"C's small queues", rstream{3, 300, 100, true, nil}, def, ctiny},
		}) {
			t.Run(r.name, func(t *testing.T) {
				rsConfigure(t, r.c)
				t.Run("C client", func(t *testing.T) { r.serveC(t, device, r.opt) })
				t.Run("C server", func(t *testing.T) { r.dialC(t, device, r.opt) })
			})
		}
	})
}

// TestRstreamWraps sends more messages in each direction than credits, of 16 bits, count.
func TestRstreamWraps(t *testing.T) {
	labtest.RequireKernel(t)
	if testing.Short() {
		t.Skip("sends 66,536 messages")
	}
	labtest.Each(t, func(t *testing.T, device string) {
		rstream{1, 1<<16 + 1000, 8, true, nil}.dialC(t, device, rsock.Options{})
	})
}

// TestRstreamKilled checks that reads and writes fail when the peer is killed during a
// stream.
func TestRstreamKilled(t *testing.T) {
	labtest.RequireLong(t)
	labtest.Each(t, func(t *testing.T, device string) {
		endless := rstream{1 << 20, 1, 5000, false, nil}
		kill := func(t *testing.T, c *program, conn net.Conn) {
			defer conn.Close()
			done := make(chan error, 1)
			go func() { done <- endless.run(conn, true) }()
			time.Sleep(300 * time.Millisecond)
			c.Signal(unix.SIGKILL)
			select {
			case err := <-done:
				if ne, ok := err.(net.Error); !ok || ne.Timeout() {
					t.Errorf("after the peer's death: %v", err)
				}
			case <-time.After(30 * time.Second):
				t.Error("the peer's death goes unnoticed")
			}
		}
		t.Run("C client", func(t *testing.T) {
			client, conn := endless.acceptClient(t, device, rsock.Options{})
			kill(t, client, conn)
		})
		t.Run("C client that has stopped", func(t *testing.T) {
			client, conn := endless.acceptClient(t, device, rsock.Options{})
			if _, err := io.CopyN(io.Discard, bufio.NewReader(conn), 16); err != nil {
				t.Fatal(err)
			}
			client.Signal(unix.SIGSTOP)
			time.AfterFunc(300*time.Millisecond, func() { client.Signal(unix.SIGKILL) })
			var err error
			for b := make([]byte, 100000); err == nil; _, err = conn.Write(b) {
			}
			if ne, ok := err.(net.Error); !ok || ne.Timeout() {
				t.Errorf("after the peer's death: %v", err)
			}
			conn.Close()
		})
	})
}
