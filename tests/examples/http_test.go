package examples

import (
	"bufio"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"regexp"
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

// TestEmptyPath asks http without a path, and for what it has not.
func TestEmptyPath(t *testing.T) {
	_, _, addr := startServer(t, "http", "serve", "127.0.0.1:0")
	c := labtest.Made(net.Dial("tcp", addr))(t)
	labtest.Must(fmt.Fprint(c, "GET http://example.com HTTP/1.1\r\nHost: example.com\r\n\r\n"))(t)
	if line, err := bufio.NewReader(c).ReadString('\n'); line != "HTTP/1.1 200 OK\r\n" {
		t.Errorf("the server answers %q, %v", line, err)
	}
	web := httptest.NewServer(http.NotFoundHandler())
	defer web.Close()
	out, errs, exit := run(t, "http", "get", web.URL)
	refused(t, strings.TrimPrefix(out, "connected by tcp\n"), errs, exit, regexp.MustCompile("^the server answered 404 Not Found\n$"))
}
