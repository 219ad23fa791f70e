package examples

import (
	"fmt"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/goverbs/verbs/internal/labtest"
)

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
