package examples

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/goverbs/verbs/internal/labtest"
)

// TestMsg sends texts with msg-send to msg-recv.
func TestMsg(t *testing.T) {
	each(t, func(t *testing.T, _, addr string) {
		recv := command(t, t.Context(), "msg-recv", "-n", "2", addr, "0")
		out := labtest.Must(recv.StdoutPipe())(t)
		var errs bytes.Buffer
		recv.Stderr = &errs
		labtest.Check(t, recv.Start())
		kill := time.AfterFunc(time.Minute, func() { recv.Process.Kill() })
		defer kill.Stop()
		lines := bufio.NewReader(out)
		first, err := lines.ReadString('\n')
		port, ok := strings.CutPrefix(strings.TrimSpace(first), "listening on "+addr+":")
		if err != nil || !ok {
			t.Fatalf("msg-recv prints %q, %v", first, err)
		}
		rest := make(chan string, 1)
		go func() { // otherwise it would block in its callback, as would its senders
			b, _ := io.ReadAll(lines)
			rest <- string(b)
		}()
		want := ""
		for _, text := range []string{"hello", strings.Repeat("x", 100_000)} {
			out, errs, exit := run(t, "msg-send", addr, port, text)
			if out != fmt.Sprintf("%d bytes sent\n", len(text)) || errs != "" || exit != 0 {
				t.Errorf("msg-send: exit status %d, output\n%s%s", exit, out, errs)
			}
			want += "connection established\nmessage received: " + text + "\nconnection closed: EOF\n"
		}
		got := <-rest
		if err := recv.Wait(); err != nil || errs.Len() > 0 || got != want {
			t.Errorf("msg-recv: %v, output\n%.200s%s", err, got, &errs)
		}
		if labtest.Soft { // the device has ended with its program
			return
		}
		stdout, stderr, exit := run(t, "msg-send", addr, "1")
		refused(t, stdout, stderr, exit, regexp.MustCompile(`connect.*(refused|rejected)`))
	})
}
