package examples

import (
	"bufio"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/goverbs/verbs/internal/labtest"
)

// TestRDMACMConnect runs both sides of rdmacm-connect.
func TestRDMACMConnect(t *testing.T) {
	each(t, func(t *testing.T, _, host string) {
		server, lines, addr := startServer(t, "rdmacm-connect", "server", host+":0")
		if out, errs, exit := run(t, "rdmacm-connect", "client", addr); out != "sent: \"hello over rdmacm\"\n" || exit != 0 {
			t.Errorf("the client: exit status %d, output\n%s%s", exit, out, errs)
		}
		lines.Scan()
		if lines.Text() != `received: "hello over rdmacm"` {
			t.Errorf("the server prints %q", lines.Text())
		}
		if err := server.Wait(); err != nil {
			t.Errorf("the server: %v", err)
		}
	})
}

// startServer starts an example as a server, and returns it with the rest of its output and
// the address on which it listens. It is killed when the test ends.
func startServer(t *testing.T, name string, args ...string) (server *exec.Cmd, lines *bufio.Scanner, addr string) {
	t.Helper()
	server = command(t, labtest.Within(t, time.Minute), name, args...)
	lines, addr = listen(t, server)
	return server, lines, addr
}

// listen does the same with a server that the caller has prepared.
func listen(t *testing.T, server *exec.Cmd) (lines *bufio.Scanner, addr string) {
	t.Helper()
	lines = bufio.NewScanner(labtest.Must(server.StdoutPipe())(t))
	labtest.Check(t, server.Start())
	t.Cleanup(func() {
		server.Process.Kill()
		server.Wait()
	})
	lines.Scan()
	addr, ok := strings.CutPrefix(lines.Text(), "listening on ")
	if !ok {
		t.Fatalf("the server prints %q", lines.Text())
	}
	return lines, addr
}
