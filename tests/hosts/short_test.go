package hosts

import (
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"regexp"
	"strconv"
	"testing"
	"time"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/cm"
	"github.com/goverbs/verbs/internal/labtest"
	"github.com/goverbs/verbs/rsock"
	"github.com/goverbs/verbs/uverbs"
)

// TestShort accepts connections on rxe of a client in C that sends a message and disconnects, and whose
// confirmation (RTU), which is sent once, is lost: the message is there, and then the end.
func TestShort(t *testing.T) {
	const message = "hello\x00"
	d := drivers[0]
	p := dialPeer(t)
	source := labtest.Must(filepath.Abs("../interop/testdata/short.c"))(t)
	p.run(t, 2, "cc", "-o", "/tmp/short", source, "-lrdmacm", "-libverbs")
	// The attribute of the management datagram is behind the headers of IPv4, UDP, BTH and DETH, and
	// 16 bytes of its own.
	p.run(t, 1, "sh", "-c", "modprobe -a sch_ingress cls_u32 act_gact; tc qdisc add dev "+d.wire+" clsact && tc filter add dev "+d.wire+
		" ingress protocol ip u32 match ip dport 4791 0xffff match u16 0x0014 0xffff at 64 action drop")
	defer p.run(t, 1, "tc", "qdisc", "del", "dev", d.wire, "clsact")
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	client := func(port uint16, args ...string) (wait func() string) {
		return p.start(t, 2, append(append([]string{"/tmp/short"}, args...), fmt.Sprintf(d.addr, 1), strconv.Itoa(int(port)))...)
	}

	t.Run("cm", func(t *testing.T) {
		l := labtest.Made(cm.Listen(ctx, d.hostAddr(1)))(t)
		wait := client(l.Addr().Port())
		var mr *uverbs.MR
		e := labtest.Made(labtest.Must(l.Accept(ctx))(t).Accept(ctx, cm.Options{Setup: func(e *cm.Endpoint) (err error) {
			if mr, err = e.AllocMR(64, verbs.AccessLocalWrite); err == nil {
				_, err = e.QP.PostRecv(verbs.RecvWR{SGL: []verbs.SGE{mr.SGE(0, 64)}})
			}
			return err
		}}))(t)
		if wc, err := e.RecvCQ.Next(ctx); err != nil || wc.Err() != nil || string(mr.Bytes()[:wc.ByteLen]) != message {
			t.Errorf("%+v, %v", wc, err)
		}
		<-e.Done()
		if err := e.Err(); !errors.Is(err, verbs.ErrDisconnected) {
			t.Error(err)
		}
		wait()
	})
	t.Run("rsock", func(t *testing.T) {
		l := labtest.Made(rsock.Listen("rdma", d.hostAddr(1)))(t)
		wait := client(l.Addr().(cm.Addr).Port(), "-r")
		conn := labtest.Must(l.Accept())(t)
		defer conn.Close()
		conn.SetDeadline(time.Now().Add(20 * time.Second))
		if got, err := io.ReadAll(conn); err != nil || string(got) != message {
			t.Errorf("%q, %v", got, err)
		}
		wait()
	})
	if out := p.run(t, 1, "tc", "-s", "filter", "show", "dev", d.wire, "ingress"); !regexp.MustCompile(`dropped [2-9]`).MatchString(out) {
		t.Errorf("not every RTU was dropped:\n%s", out)
	}
}
