//go:build linux

package perf

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"net"
	"net/netip"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/goverbs/verbs/cmd/verbs/internal/cli"
	"github.com/goverbs/verbs/internal/labtest"
	"github.com/goverbs/verbs/rsock"
)

// long are runs that do not end by themselves within a test: one or more for each way to
// wait.
var long = []string{"send bw -b -q 2", "send lat -e", "write lat", "write bw -e", "read lat"}

// begin starts a client of a long run and waits until it is running.
func begin(t *testing.T, device, port, test string, more ...string) *program {
	t.Helper()
	args := append(strings.Fields(test), "-v", "-D", "100", "-s", "1024", "-p", port, labtest.AddrOf(device))
	c := startProgram(t, append(args, more...)...)
	c.waitFor(" begins")
	return c
}

// TestKilled kills the client, and then the server: the other side must report it, and the
// server must continue.
func TestKilled(t *testing.T) {
	labtest.RequireLong(t)
	labtest.Each(t, func(t *testing.T, device string) {
		for _, test := range long {
			server, port := serve(t, device)
			c := begin(t, device, port, test)
			c.cmd.Process.Kill()
			c.wait()
			server.waitFor("client " + labtest.AddrOf(device))
			c = begin(t, device, port, test)
			server.cmd.Process.Kill()
			if code := c.wait(); code != 1 || !strings.Contains(c.output(), "verbs: ") {
				t.Errorf("%s: the client of a dead server ended with %d: %q", test, code, c.output())
			}
			t.Logf("%s: server: %s client: %s", test, server.output(), c.output())
		}
	})
}

// TestInterrupted interrupts either side, as by Ctrl-C, and the other side must report it.
func TestInterrupted(t *testing.T) {
	labtest.RequireLong(t)
	labtest.Each(t, func(t *testing.T, device string) {
		for _, test := range long[:2] {
			server, port := serve(t, device)
			c := begin(t, device, port, test)
			c.interrupt()
			if code := c.wait(); code != 1 || !strings.Contains(c.output(), "interrupt") {
				t.Errorf("%s: the interrupted client ended with %d: %q", test, code, c.output())
			}
			server.waitFor("peer: ")
			c = begin(t, device, port, test)
			server.interrupt()
			if code := server.wait(); code != 0 {
				t.Errorf("%s: the interrupted server ended with %d: %q", test, code, server.output())
			}
			if code := c.wait(); code != 1 || !strings.Contains(c.output(), "verbs: peer: ") {
				t.Errorf("%s: the client of an interrupted server ended with %d: %q", test, code, c.output())
			}
		}
	})
}

// TestStopped stops a server during a run: its client must give up.
func TestStopped(t *testing.T) {
	labtest.RequireLong(t)
	labtest.Each(t, func(t *testing.T, device string) {
		for _, test := range []string{"send lat -e", "write lat"} {
			server, port := serve(t, device)
			c := begin(t, device, port, test, "--timeout", "1s")
			server.cmd.Process.Signal(syscall.SIGSTOP)
			if code := c.wait(); code != 1 || !strings.Contains(c.output(), "nothing moved for 1s") {
				t.Errorf("%s: the client of a stopped server ended with %d: %q", test, code, c.output())
			}
			server.cmd.Process.Signal(syscall.SIGCONT)
			server.waitFor("client " + labtest.AddrOf(device))
		}
	})
}

// TestCut closes a client's data connection without sending the reason: the server must
// report the end of the connection, and not the requests that fail because of it.
func TestCut(t *testing.T) {
	labtest.Each(t, func(t *testing.T, device string) {
		server, port := serve(t, device)
		conn := labtest.Must(rsock.Dial("rdma", labtest.AddrOf(device)+":"+port))(t)
		defer conn.Close()
		w := work{Version: version, Op: "send", Mode: modeBW, Size: 64, Iters: 10, QPs: 1, TxDepth: 4, RxDepth: 4, List: 1, CQMod: 1, Both: true, Timeout: time.Minute}
		client := labtest.Must(newSession(t.Context(), w, newControl(conn), true))(t)
		defer client.close(nil)
		if err := errors.Join(client.requestRun(), client.exchangeStart()); err != nil {
			t.Fatal(err)
		}
		client.queues[0].ep.Close()
		server.waitFor("data connection: peer disconnected")
	})
}

// TestBadClient runs clients that break the protocol: they receive an error, and the server
// continues to serve others.
func TestBadClient(t *testing.T) {
	labtest.Require(t)
	server, port := serve(t, labtest.RoCE)
	dial := func() net.Conn {
		conn := labtest.Must(rsock.Dial("rdma", labtest.Addr+":"+port))(t)
		conn.SetDeadline(time.Now().Add(testTimeout))
		return conn
	}
	good := work{Version: version, Op: "send", Mode: modeBW, Size: 64, Iters: 10, QPs: 1, TxDepth: 4, RxDepth: 4, List: 1, CQMod: 1, Timeout: time.Second}
	with := func(change func(*work)) string {
		w := good
		change(&w)
		return string(labtest.Must(json.Marshal(message{Work: &w}))(t))
	}
	for line, want := range map[string]string{
		"hello":                                            "invalid character",
		"{}":                                               "protocol",
		`{"done":{"sent":1}}`:                              "protocol",
		`{"error":{"text":"oh"}}`:                          "oh",
		`{"work":{"size":"huge"}}`:                         "cannot unmarshal",
		strings.Repeat("x", 2*cli.LongestLine):             "too long",
		with(func(w *work) { w.Version++ }):                "version 3",
		with(func(w *work) { w.Op = "teleport" }):          "no such test",
		with(func(w *work) { w.Size = math.MaxInt }):       "size (-s)",
		with(func(w *work) { w.Size = -1 }):                "size (-s)",
		with(func(w *work) { w.QPs = 1 << 20 }):            "QPs (-q)",
		with(func(w *work) { w.Op, w.Inline = "ud", 6e4 }): "create QP",
		with(func(w *work) { w.Op, w.Size = "ud", 1e6 }):   "one packet",
	} {
		conn := dial()
		fmt.Fprintln(conn, line)
		c := newControl(conn)
		if m, err := c.receive(t.Context()); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%.80s: %+v, %v", line, m, err)
		}
		conn.Close()
	}
	// One client leaves during the handshake, the others break the protocol there.
	for next, want := range map[string]string{
		"":                    "peer left",
		`{"start":{"len":1}}`: "peer has 1 bytes",
		`{"start":{"len":1000000,"qps":["0000:000011:636ab2:00000000000000000000ffff0a090063"]}}`: "datagrams to 10.9.0.99, but it is " + labtest.Addr,
		`{"offer":{}}`: "protocol",
		`{"start":{}}` + "\n" + `{"start":{}}` + "\n" + `{"start":{}}`: "protocol",
	} {
		conn := dial()
		c := newControl(conn)
		w := good
		if strings.Contains(next, "len") {
			w.Op = "ud"
		}
		if err := c.send(message{Work: &w}); err != nil {
			t.Fatal(err)
		}
		if m, err := c.receive(t.Context()); err != nil || m.Offer == nil {
			t.Fatalf("%+v, %v", m, err)
		}
		if next != "" {
			fmt.Fprintln(conn, next)
		} else {
			conn.Close()
		}
		server.waitFor(want)
		conn.Close()
	}
	if _, err := measure(t, labtest.RoCE, port, "send bw -n 10 -s 64"); err != nil {
		t.Error(err)
	}
}

// TestBadServer runs servers that answer with unexpected messages.
func TestBadServer(t *testing.T) {
	labtest.Require(t)
	for answer, want := range map[string]string{
		"":             "EOF",
		"?":            "invalid character",
		`{"start":{}}`: "protocol",
		`{"error":{"text":"no","unsupported":true}}`: "peer: no",
		`{"offer":{"port":1,"token":1}}`:             "dial",
	} {
		l := labtest.Must(rsock.Listen("rdma", labtest.Addr+":0"))(t)
		go func() {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			defer conn.Close()
			newControl(conn).receive(t.Context())
			if answer != "" {
				fmt.Fprintln(conn, answer)
				newControl(conn).receive(t.Context())
			}
		}()
		port := netip.MustParseAddrPort(l.Addr().String()).Port()
		_, err := measure(t, labtest.RoCE, fmt.Sprint(port), "send lat")
		if err == nil || !strings.Contains(err.Error(), want) || errors.Is(err, errors.ErrUnsupported) != strings.Contains(answer, "unsupported") {
			t.Errorf("%q: %v", answer, err)
		}
		l.Close()
	}
}

// TestAtOnce runs many clients of one server.
func TestAtOnce(t *testing.T) {
	labtest.Each(t, func(t *testing.T, device string) {
		server, port := serve(t, device)
		tests := []string{"send bw -e", "send lat -e", "read bw -e -q 2", "write bw -e -b"}
		var clients sync.WaitGroup
		for _, test := range tests {
			clients.Go(func() {
				if _, err := measure(t, device, port, test+" -n 50 -s 1000"); err != nil {
					t.Errorf("%s: %v", test, err)
				}
			})
		}
		clients.Wait()
		var served []string
		for range tests {
			var r result
			if err := json.Unmarshal([]byte(server.line()), &r); err != nil {
				t.Fatal(err)
			}
			served = append(served, r.Op+" "+r.Mode)
		}
		slices.Sort(served)
		if want := "[read bw send bw send lat write bw]"; fmt.Sprint(served) != want {
			t.Errorf("served %v, not %v", served, want)
		}
	})
}

// TestLoss sends many datagrams at a time to a receiver with one receive.
func TestLoss(t *testing.T) {
	labtest.Require(t)
	_, port := serve(t, labtest.RoCE)
	r, err := measure(t, labtest.RoCE, port, "ud bw -r 1 -l 64 -n 2000 -s 64")
	if err != nil {
		t.Fatal(err)
	}
	if r.Lost == 0 || r.Lost != r.Sent-r.PeerReceived || r.PeerReceived == 0 {
		t.Errorf("%+v", r)
	}
}

// TestAllocs checks that long runs allocate no more than short ones, on both sides.
func TestAllocs(t *testing.T) {
	labtest.RequireKernel(t)
	labtest.Each(t, func(t *testing.T, device string) {
		_, port := serve(t, device)
		for i, test := range labtest.Few(2, []string{"send bw -b -q 2 -l 4 -e", "write lat", "write bw", "send lat -e"}) {
			mallocs := func(n int) uint64 {
				var before, after runtime.MemStats
				runtime.ReadMemStats(&before)
				if _, err := measure(t, device, port, fmt.Sprintf("%s -s 8 -n %d", test, n)); err != nil {
					t.Fatalf("%s: %v", test, err)
				}
				runtime.ReadMemStats(&after)
				return after.Mallocs - before.Mallocs
			}
			if i == 0 {
				mallocs(10) // for what is allocated only once
			}
			// What connections share may be created again, with 200 allocations, or twice as many
			// on mlx5.
			few, many := mallocs(10), mallocs(2010)
			if many > few+1000 {
				t.Errorf("%s: %d allocations for 10 messages, %d for 2010", test, few, many)
			}
			t.Logf("%s: %d and %d allocations", test, few, many)
		}
	})
}

// TestAllSizes checks that the command prints a line for each size.
func TestAllSizes(t *testing.T) {
	labtest.Require(t)
	_, port := serve(t, labtest.RoCE)
	var out, errs strings.Builder
	ctx, cancel := context.WithTimeout(t.Context(), testTimeout)
	defer cancel()
	args := strings.Fields("ud bw -a -n 10 -p " + port + " " + labtest.Addr)
	if err := command(ctx, &out, &errs, args...); err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSpace(out.String()), "\n")
	// The heading has two lines, and the MTU is 1024.
	if len(lines) != 12 || lines[0] != "ud bw" || !strings.Contains(lines[1], "MiB/s") || !strings.HasPrefix(strings.TrimSpace(lines[11]), "1024 ") {
		t.Errorf("it prints\n%s", &out)
	}
	if errs.String() != "" {
		t.Errorf("it says %q", &errs)
	}
}
