package examples

import (
	"bufio"
	"bytes"
	"io"
	"os/exec"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/goverbs/verbs/internal/labtest"
)

// TestMsg sends texts with msg-send to msg-recv.
func TestMsg(t *testing.T) {
	labtest.Each(t, func(t *testing.T, device string) {
		addr := labtest.AddrOf(device)
		recv := exec.Command(labtest.Built(t, "msg-recv"), "-n", "2", addr, "0")
		out, err := recv.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		var errs bytes.Buffer
		recv.Stderr = &errs
		if err := recv.Start(); err != nil {
			t.Fatal(err)
		}
		kill := time.AfterFunc(time.Minute, func() { recv.Process.Kill() })
		defer kill.Stop()
		lines := bufio.NewReader(out)
		first, err := lines.ReadString('\n')
		port, ok := strings.CutPrefix(strings.TrimSpace(first), "listening on "+addr+":")
		if err != nil || !ok {
			t.Fatalf("msg-recv prints %q, %v", first, err)
		}
		for args, want := range map[string]string{"": "5 bytes sent\n", strings.Repeat("x", 100_000): "100000 bytes sent\n"} {
			argv := []string{addr, port}
			if args != "" {
				argv = append(argv, args)
			}
			if out, errs, exit := run(t, "msg-send", argv...); out != want || errs != "" || exit != 0 {
				t.Errorf("msg-send: exit status %d, output\n%s%s", exit, out, errs)
			}
		}
		rest, _ := io.ReadAll(lines)
		one := "connection established\nmessage received: (hello|x{1000}.*)\nconnection closed: EOF\n"
		if err := recv.Wait(); err != nil || errs.Len() > 0 || !regexp.MustCompile("^("+one+"){2}$").Match(rest) {
			t.Errorf("msg-recv: %v, output\n%.200s%s", err, rest, &errs)
		}
		stdout, stderr, exit := run(t, "msg-send", addr, "1")
		refused(t, stdout, stderr, exit, regexp.MustCompile(`connect.*(refused|rejected)`))
	})
}
