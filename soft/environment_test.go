package soft_test

import (
	"io"
	"os"
	"os/exec"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/goverbs/verbs/cm"
	"github.com/goverbs/verbs/rconn"
	"github.com/goverbs/verbs/rmsg"
	"github.com/goverbs/verbs/rsock"
	"github.com/goverbs/verbs/uverbs"
)

// TestEnvironment runs this test program with VERBS_SOFT: all packages use the device.
func TestEnvironment(t *testing.T) {
	if os.Getenv("VERBS_SOFT") != "" {
		useRequested(t)
		return
	}
	run := func(value string) (string, error) {
		cmd := exec.Command(os.Args[0], "-test.run", "^TestEnvironment$", "-test.v")
		cmd.Env = append(os.Environ(), "VERBS_SOFT="+value)
		out, err := cmd.CombinedOutput()
		return string(out), err
	}
	out, err := run("127.0.0.3")
	if strings.Contains(out, "already in use") || strings.Contains(out, "no interface has") {
		t.Skip(out)
	}
	if err != nil || !strings.Contains(out, "device soft0 [127.0.0.3]") || !strings.Contains(out, "path on soft0") {
		t.Errorf("%v\n%s", err, out)
	}
	if out, err := run("nonsense"); err == nil || !strings.Contains(out, "VERBS_SOFT=nonsense: ") {
		t.Errorf("%v\n%s", err, out)
	}
}

const requested = "127.0.0.3:0"

// useRequested uses the device that the environment requests.
func useRequested(t *testing.T) {
	synctest.Test(t, func(t *testing.T) { // of whose goroutines the device has none
		uverbs.Devices()
		time.Sleep(time.Hour)
	})
	for _, d := range must(uverbs.Devices())(t) {
		t.Logf("device %s %v", d.Name, must(cm.DeviceAddrs(d))(t))
	}
	must(cm.DefaultTransport().NewChannel())(t).Close()
	p := must(cm.Lookup(within(t), "127.0.0.3"))(t)
	t.Logf("path on %s", p.Device.Name)
	t.Run("rsock", useRsock)
	t.Run("rmsg", useRmsg)
	t.Run("rconn", useRconn)
}

// useRsock sends a megabyte through a stream and back.
func useRsock(t *testing.T) {
	l := must(rsock.Listen("rdma", requested))(t)
	defer l.Close()
	go func() {
		if c, err := l.Accept(); err == nil {
			io.Copy(c, c)
			c.Close()
		}
	}()
	c := must(rsock.Dial("rdma", l.Addr().String()))(t)
	defer c.Close()
	sent := strings.Repeat("0123456789abcdef", 1<<16)
	go func() {
		io.WriteString(c, sent)
		c.(*rsock.Conn).CloseWrite()
	}()
	if got, err := io.ReadAll(c); err != nil || string(got) != sent {
		t.Errorf("got %d bytes back, %v", len(got), err)
	}
}

// useRmsg sends a message.
func useRmsg(t *testing.T) {
	l := must(rmsg.Listen(within(t), requested))(t)
	defer l.Close()
	accepted := make(chan *rmsg.Conn, 1)
	go func() {
		s, err := l.Accept(within(t))
		if err != nil {
			t.Error(err)
		}
		accepted <- s
	}()
	c := must(rmsg.Dial(within(t), l.Addr().String()))(t)
	defer c.Close()
	s := <-accepted
	if s == nil {
		return
	}
	defer s.Close()
	if err := c.Send(within(t), []byte("a message")); err != nil {
		t.Fatal(err)
	}
	b := must(s.Recv(within(t)))(t)
	if string(b.Bytes()) != "a message" {
		t.Errorf("received %q", b.Bytes())
	}
	b.Free()
}

// useRconn connects and disconnects.
func useRconn(t *testing.T) {
	l := must(rconn.Listen(within(t), requested))(t)
	defer l.Close()
	accepted := make(chan error, 1)
	go func() {
		r, err := l.Accept(within(t))
		if err == nil {
			var c *rconn.Conn
			if c, err = r.Accept(within(t), rconn.Options{}); err == nil {
				err = c.AwaitDisconnect(within(t))
				c.Close()
			}
		}
		accepted <- err
	}()
	c := must(rconn.Dial(within(t), l.Addr().String()))(t)
	if err := c.Close(); err != nil {
		t.Error(err)
	}
	if err := <-accepted; err != nil {
		t.Error(err)
	}
}
