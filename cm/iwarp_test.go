//go:build linux

package cm_test

import (
	"bytes"
	"errors"
	"io"
	"net"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/cm"
	"github.com/goverbs/verbs/internal/labtest"
)

// TestInitOfIWARP queries the attributes with which an iWARP QP moves to INIT.
func TestInitOfIWARP(t *testing.T) {
	labtest.RequireKernel(t)
	_, request := labtest.Request(t, "siw0", cm.ConnParam{})
	attr, mask, err := request.NewID.InitQPAttr(verbs.StateInit)
	if err != nil {
		t.Fatal(err)
	}
	if want := verbs.AccessRemoteWrite | verbs.AccessRemoteRead; attr.Access != want {
		t.Errorf("access %v, not %v", attr.Access, want)
	}
	attr.State, attr.Access, attr.Port = 0, 0, 0 // an iWARP device has one port
	if more := mask &^ (verbs.MaskState | verbs.MaskAccess | verbs.MaskPort); more != 0 || attr != (verbs.QPAttr{}) {
		t.Errorf("besides %#x: %+v", more, attr)
	}
}

// TestErrMPA dials two peers that it plays over TCP: one accepts the connection, and
// the first message of the other comes together with the answer.
func TestErrMPA(t *testing.T) {
	labtest.RequireKernel(t)
	l := labtest.Made(net.Listen("tcp", labtest.AddrOf(labtest.SIW)+":0"))(t)
	for message, want := range map[string]error{"": nil, "a message": cm.ErrMPA} {
		go func() {
			c, err := l.Accept()
			if err != nil {
				return // the listener is closed
			}
			defer c.Close()
			header := make([]byte, 20)
			if _, err := io.ReadFull(c, header); err != nil {
				t.Error(err)
			}
			private := make([]byte, int(header[18])<<8|int(header[19]))
			if _, err := io.ReadFull(c, private); err != nil {
				t.Error(err)
			}
			answer := append(bytes.Replace(header, []byte("Req"), []byte("Rep"), 1), private...)
			if _, err := c.Write(append(answer, message...)); err != nil {
				t.Error(err)
			}
			io.Copy(io.Discard, c)
		}()
		d := cm.Dialer{ConnectTimeout: 20 * time.Second}
		e, err := d.Dial(t.Context(), l.Addr().String())
		if want == nil && err != nil || want != nil && !(errors.Is(err, want) && errors.Is(err, unix.EINVAL)) {
			t.Errorf("an answer and %q: %v", message, err)
		}
		if err == nil {
			e.Close()
		}
	}
}
