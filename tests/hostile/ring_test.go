package hostile

import (
	"bytes"
	"io"
	"testing"
	"time"

	"github.com/goverbs/verbs/internal/labtest"
	"github.com/goverbs/verbs/rsock"
)

// TestRingChanges runs a peer that breaks the rules and changes bytes that it has announced.
// The bytes that Read has returned, and that WriteTo passes to a writer, must not change.
func TestRingChanges(t *testing.T) {
	labtest.EachClean(t, func(t *testing.T, device string) {
		l := labtest.Made(rsock.Listen("rdma", labtest.AddrOf(device)+":0"))(t)
		s := &server{device: device, addr: l.Addr().String()}
		connect := func() (*peer, *rsock.Conn) {
			p := labtest.Must(dialPeer(t, s, connectDataWith(func(*connectData) {})))(t)
			c := labtest.Must(l.Accept())(t).(*rsock.Conn)
			t.Cleanup(func() { c.SetLinger(0); c.Close() })
			c.SetDeadline(time.Now().Add(waitTimeout))
			return p, c
		}
		first, second := bytes.Repeat([]byte("1"), 40), bytes.Repeat([]byte("2"), 40)
		change := func(p *peer) {
			_, ring := p.victimBuffers()
			p.write(ring.addr, ring.key, second)
		}

		p, c := connect()
		p.sendData(first)
		got := make([]byte, 40)
		if _, err := io.ReadFull(c, got); err != nil {
			t.Fatal(err)
		}
		change(p)
		p.sendRsockMsg(opCtrl) // follows the change, and is the last message
		if n, err := c.Read(make([]byte, 1)); err != io.EOF {
			t.Errorf("%d more bytes, %v", n, err)
		}
		if !bytes.Equal(got, first) {
			t.Errorf("what was read is %q now", got)
		}

		p, c = connect()
		p.sendData(first)
		_, err := c.WriteTo(writerFunc(func(b []byte) (int, error) {
			change(p)
			p.sendRsockMsg(opCtrl)
			if n, err := c.Read(make([]byte, 1)); err != io.EOF {
				t.Errorf("%d more bytes, %v", n, err)
			}
			if !bytes.Equal(b, first) {
				t.Errorf("what is written is %q now", b)
			}
			return len(b), nil
		}))
		if err != nil {
			t.Error(err)
		}
	})
}

type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(b []byte) (int, error) { return f(b) }
