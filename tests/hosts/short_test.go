package hosts

import (
	"context"
	"fmt"
	"path/filepath"
	"regexp"
	"strconv"
	"testing"
	"time"

	"github.com/goverbs/verbs/internal/labtest"
	"github.com/goverbs/verbs/tests/workload"
)

// TestShort accepts connections on rxe of a client in C that sends a message and disconnects, and
// whose confirmation (RTU), which is sent once, is lost: the message is there, and then the end.
func TestShort(t *testing.T) {
	d := drivers[0]
	p := dialPeer(t)
	source := labtest.Must(filepath.Abs("../interop/testdata/short.c"))(t)
	p.run(t, 2, "cc", "-o", "/tmp/short", source, "-lrdmacm", "-libverbs")
	// The attribute of the management datagram is behind the headers of IPv4, UDP, BTH and DETH,
	// and 16 bytes of its own.
	p.run(t, 1, "sh", "-c", "modprobe -a sch_ingress cls_u32 act_gact; tc qdisc add dev "+d.wire+" clsact && tc filter add dev "+d.wire+
		" ingress protocol ip u32 match ip dport 4791 0xffff match u16 0x0014 0xffff at 64 action drop")
	defer p.run(t, 1, "tc", "qdisc", "del", "dev", d.wire, "clsact")
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	err := workload.Short(ctx, nil, fmt.Sprintf(d.addr, 1), func(port uint16, args ...string) func() {
		wait := p.start(t, 2, append(append([]string{"/tmp/short"}, args...), fmt.Sprintf(d.addr, 1), strconv.Itoa(int(port)))...)
		return func() { wait() }
	})
	if err != nil {
		t.Error(err)
	}
	if out := p.run(t, 1, "tc", "-s", "filter", "show", "dev", d.wire, "ingress"); !regexp.MustCompile(`dropped [2-9]`).MatchString(out) {
		t.Errorf("not every RTU was dropped:\n%s", out)
	}
}
