package examples

import (
	"bufio"
	"io"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/goverbs/verbs/internal/labtest"
)

// TestChat checks that two clients of chat receive each other's messages and their own.
func TestChat(t *testing.T) {
	each(t, func(t *testing.T, _, host string) {
		server, _, out := chat(t, "serve", host+":0")
		addr, ok := strings.CutPrefix(line(t, out), "listening on ")
		if !ok {
			t.Fatalf("the server prints %q", addr)
		}
		a, toA, fromA := chat(t, addr, "a")
		io.WriteString(toA, "first\n")
		if got := line(t, fromA); got != "a: first" {
			t.Errorf("a prints %q", got)
		}
		b, toB, fromB := chat(t, addr, "b")
		long := strings.Repeat("x", 50_000)
		for _, text := range []string{"hello", long, ""} {
			io.WriteString(toB, text+"\n")
			for name, from := range map[string]*bufio.Reader{"a": fromA, "b": fromB} {
				if got := line(t, from); got != "b: "+text {
					t.Errorf("%s prints %.100q", name, got)
				}
			}
		}
		// A client leaves by itself, the other one because the server ends.
		toB.Close()
		ended(t, b, fromB)
		server.Process.Signal(os.Interrupt)
		ended(t, server, out)
		ended(t, a, fromA)
	})
}

// chat starts chat.
func chat(t *testing.T, args ...string) (*exec.Cmd, io.WriteCloser, *bufio.Reader) {
	t.Helper()
	ctx := labtest.Within(t, time.Minute)
	cmd := command(t, ctx, "chat", args...)
	in := labtest.Must(cmd.StdinPipe())(t)
	out := labtest.Must(cmd.StdoutPipe())(t)
	cmd.Stderr = os.Stderr
	labtest.Check(t, cmd.Start())
	return cmd, in, bufio.NewReader(out)
}

// line returns the next line that a program prints.
func line(t *testing.T, out *bufio.Reader) string {
	t.Helper()
	return strings.TrimSuffix(labtest.Must(out.ReadString('\n'))(t), "\n")
}

// ended waits for the end of a program, which prints nothing more.
func ended(t *testing.T, cmd *exec.Cmd, out *bufio.Reader) {
	t.Helper()
	rest := labtest.Must(io.ReadAll(out))(t)
	if err := cmd.Wait(); err != nil || len(rest) > 0 {
		t.Errorf("%q ends with %v, after %q", cmd.Args[1:], err, rest)
	}
}
