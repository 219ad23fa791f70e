package examples

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/goverbs/verbs/internal/labtest"
)

// TestTLS sends a line to the server with its fingerprint, and with another.
func TestTLS(t *testing.T) {
	test := func(t *testing.T, host, by string) {
		_, lines, addr := startServer(t, "tls", "serve", host+":0")
		lines.Scan()
		fingerprint := lines.Text()
		out, errs, exit := run(t, "tls", addr, fingerprint, "hello")
		if want := fmt.Sprintf("TLS 1.3 by %s, hello\n", by); out != want || errs != "" || exit != 0 {
			t.Errorf("exit status %d, output\n%s%s", exit, out, errs)
		}
		out, errs, exit = run(t, "tls", addr, strings.Repeat("0", 64), "hello")
		refused(t, out, errs, exit, regexp.MustCompile(`^the server has another certificate\n$`))
	}
	t.Run("loopback", func(t *testing.T) { test(t, "127.0.0.1", "tcp") })
	each(t, func(t *testing.T, _, addr string) { test(t, addr, "rdma") })
}

// TestShutdown interrupts http while it answers a request: the answer is complete, and the
// server ends without an error.
func TestShutdown(t *testing.T) {
	each(t, func(t *testing.T, _, host string) {
		server, lines, addr := startServer(t, "http", "serve", host+":0")
		answered := make(chan string, 1)
		go func() {
			out, errs, _ := run(t, "http", "get", fmt.Sprintf("http://%s/world?wait=500ms", addr))
			answered <- out + errs
		}()
		lines.Scan() // the request has come
		labtest.Check(t, server.Process.Signal(unix.SIGTERM))
		if got := <-answered; !strings.HasSuffix(got, "\nhello world\n") {
			t.Errorf("the client prints %q", got)
		}
		lines.Scan()
		if lines.Text() != "shutting down" {
			t.Errorf("the server prints %q", lines.Text())
		}
		if err := server.Wait(); err != nil {
			t.Errorf("the server: %v", err)
		}
	})
}

// TestReconnect kills the server twice while a client sends lines.
func TestReconnect(t *testing.T) {
	each(t, func(t *testing.T, _, host string) {
		server, lines, addr := startServer(t, "reconnect", "serve", host+":0")
		const n = 40
		type result struct {
			out, errs string
			exit      int
		}
		over := make(chan result, 1)
		go func() {
			out, errs, exit := run(t, "reconnect", addr, fmt.Sprint(n))
			over <- result{out, errs, exit}
		}()
		var got []string
		for range 2 {
			for range 8 {
				lines.Scan()
				got = append(got, lines.Text())
			}
			server.Process.Kill()
			for lines.Scan() {
				got = append(got, lines.Text())
			}
			server.Wait()
			server, lines, _ = startServer(t, "reconnect", "serve", addr)
		}
		for last := fmt.Sprintf("got %d", n-1); got[len(got)-1] != last && lines.Scan(); {
			got = append(got, lines.Text())
		}
		r := <-over
		if r.out != fmt.Sprintf("all %d lines are acknowledged\n", n) || r.exit != 0 || !strings.Contains(r.errs, "; trying again\n") {
			t.Errorf("exit status %d, output\n%s%s", r.exit, r.out, r.errs)
		}
		for i := range n {
			if !slices.Contains(got, fmt.Sprintf("got %d", i)) {
				t.Errorf("line %d has not come: %q", i, got)
			}
		}
	})
}
