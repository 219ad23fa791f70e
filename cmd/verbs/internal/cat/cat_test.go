//go:build linux

package cat

import (
	"errors"
	"io"
	"io/fs"
	"net"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"github.com/goverbs/verbs/cm"
	"github.com/goverbs/verbs/internal/labtest"
	"github.com/goverbs/verbs/rsock"
	"github.com/goverbs/verbs/soft"
)

// echo sends what the next connection of a listener brings back to it, and then its error.
func echo(l net.Listener) <-chan error {
	ended := make(chan error, 1)
	go func() {
		c, err := l.Accept()
		if err == nil {
			_, err = io.Copy(c, c)
			c.Close()
		}
		ended <- err
	}()
	return ended
}

// TestInputFails has an input that cannot be read, while the peer waits for it.
func TestInputFails(t *testing.T) {
	labtest.Require(t)
	l := labtest.Must((&rsock.ListenConfig{}).Listen(t.Context(), "rdma", labtest.AddrOf(labtest.RoCE)+":0"))(t)
	defer l.Close()
	ended := echo(l)
	conn := labtest.Must((&Cmd{Addr: l.Addr().String()}).connect(labtest.Within(t, time.Minute)))(t)
	defer time.AfterFunc(time.Minute, func() { conn.Close() }).Stop()
	if err := join(conn.(*rsock.Conn), iotest.ErrReader(fs.ErrPermission), io.Discard); !errors.Is(err, fs.ErrPermission) {
		t.Error(err)
	}
	<-ended
}

// TestTOS checks that the side that connects sends its type of service, and that the other answers
// with it. What verbs cat does with a connection is tested as a program.
func TestTOS(t *testing.T) {
	labtest.Require(t)
	labtest.TOS(t, 104, "peer", func(peer *soft.Device, addr string) {
		transport := &cm.Transport{Host: peer}
		defer transport.Close()
		l := labtest.Must((&rsock.ListenConfig{Transport: transport}).Listen(t.Context(), "rdma", addr+":0"))(t)
		defer l.Close()
		echoed := echo(l)
		conn := labtest.Must((&Cmd{Addr: l.Addr().String(), TOS: 104}).connect(t.Context()))(t)
		var out strings.Builder
		labtest.Check(t, join(conn.(*rsock.Conn), strings.NewReader("hello"), &out), <-echoed)
		if out.String() != "hello" {
			t.Errorf("%q came back", &out)
		}
	})
}
