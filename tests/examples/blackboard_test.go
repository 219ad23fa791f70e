package examples

import (
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/goverbs/verbs/internal/labtest"
)

// TestBlackboard writes and reads the memory of a server, each time with a new client.
func TestBlackboard(t *testing.T) {
	each(t, func(t *testing.T, _, host string) {
		ctx := labtest.Within(t, time.Minute)
		server := command(t, ctx, "blackboard", "serve", host+":0")
		var serverErrs strings.Builder
		server.Stderr = &serverErrs
		t.Cleanup(func() { // when it has ended
			if serverErrs.Len() > 0 {
				t.Errorf("the server prints\n%s", &serverErrs)
			}
		})
		_, addr := listen(t, server)
		for _, c := range []struct{ verb, offset, arg, prints, errors string }{
			{"write", "100", "hello, blackboard", "", `Writes:{Requests:1 Bytes:17}`},
			{"write", "0x64", "HELLO", "", `Writes:{Requests:1 Bytes:5}`},
			{"read", "98", "21", `"\x00\x00HELLO, blackboard\x00\x00"` + "\n", `Reads:{Requests:1 Bytes:21}`},
			{"write", "4091", "12345", "", `Writes:{Requests:1 Bytes:5}`},
			{"read", "4091", "5", `"12345"` + "\n", `Reads:{Requests:1 Bytes:5}`},
		} {
			out, errs, exit := run(t, "blackboard", "-v", addr, c.verb, c.offset, c.arg)
			if out != c.prints || !strings.Contains(errs, c.errors) || strings.Count(errs, "\n") != 1 || exit != 0 {
				t.Errorf("%s at %s: exit status %d, output\n%s%s", c.verb, c.offset, exit, out, errs)
			}
		}
		for _, c := range []struct{ verb, offset, arg, errors string }{
			{"write", "4092", "12345", `^put .*: out of range\n$`},
			{"read", "4092", "5", `^get .*: out of range\n$`},
			{"read", "-1", "5", `^offset or length: .*: invalid syntax\n$`},
		} {
			out, errs, exit := run(t, "blackboard", addr, c.verb, c.offset, c.arg)
			refused(t, out, errs, exit, regexp.MustCompile(c.errors))
		}
	})
}
