package verbstest

import (
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/goverbs/verbs/internal/labtest/tool"
	"github.com/goverbs/verbs/internal/roce"
	"github.com/goverbs/verbs/soft"
)

func TestTrace(t *testing.T) {
	bubble(t, Options{}, func(t *testing.T, n *Network, a, b *endpoint) {
		a.send(t, addrB, 1, 1)
		settle()
		n.SetFilter(func(p *Packet) Action {
			if p.Kind == Ack {
				return Drop
			}
			return Action{Copies: 1, Delay: time.Millisecond}
		})
		b.ack(t, addrA, 1)
		a.send(t, addrB, 2, 1)
		settle()
		want := `    1 0.000000000 10.0.0.1 > 10.0.0.2  RC SEND_ONLY qp 0x11 psn 1 + 64 bytes
    2 1.000000000 10.0.0.1 > 10.0.0.2  RC SEND_ONLY qp 0x11 psn 2 + 64 bytes [delayed by 1ms, duplicated]
    3 1.000000000 10.0.0.2 > 10.0.0.1  RC ACKNOWLEDGE qp 0x12 psn 1 ACK credits 0 msn 0 [dropped: filter]
`
		if got := n.Trace(); got != want {
			t.Errorf("trace:\n%s\nnot\n%s", got, want)
		}
	})
}

func TestTraceLimit(t *testing.T) {
	for _, limit := range []int{-1, 1, 3} {
		bubble(t, Options{TraceLimit: limit, Link: Link{Delay: time.Millisecond}}, func(t *testing.T, n *Network, a, b *endpoint) {
			a.send(t, addrB, 0, 10)
			time.Sleep(time.Millisecond / 2)
			n.Remove(addrB)
			settle()
			got := n.Trace()
			if lines := strings.Count(got, "[dropped: no device has the address]\n"); lines != max(limit, 0) || strings.Count(got, "\n") != lines {
				t.Errorf("limit %d: %s", limit, got)
			}
			if limit > 0 && !strings.Contains(got, fmt.Sprintf("psn %d ", 10-limit)) {
				t.Errorf("limit %d: %s", limit, got)
			}
		})
	}
}

// failing is a test that has failed.
type failing struct {
	testing.TB
	dir     string
	log     strings.Builder
	cleanup func()
}

func (f *failing) Helper()                 {}
func (f *failing) Failed() bool            { return true }
func (f *failing) Cleanup(c func())        { f.cleanup = c }
func (f *failing) ArtifactDir() string     { return f.dir }
func (f *failing) Log(a ...any)            { fmt.Fprintln(&f.log, a...) }
func (f *failing) Logf(s string, a ...any) { fmt.Fprintf(&f.log, s+"\n", a...) }

// TestTraceOnFailure also lets tshark read the capture file, if it is installed.
func TestTraceOnFailure(t *testing.T) {
	f := &failing{TB: t, dir: t.TempDir()}
	synctest.Test(t, func(t *testing.T) {
		n := NewNetwork(Options{Filter: func(p *Packet) Action { return Action{Drop: p.PSN == 2} }})
		TraceOnFailure(f, n)
		a, b := attach(t, n, addrA), attach(t, n, addrB)
		x, y := attach(t, n, netip.MustParseAddr("fd00::1")), attach(t, n, netip.MustParseAddr("fd00::2"))
		a.send(t, addrB, 1, 2)
		settle()
		b.ack(t, addrA, 1)
		settle()
		src, dst := x.Addr(), y.Addr()
		p := roce.Packet{Opcode: roce.RCWriteOnly, DestQP: 0x21, PSN: 7, RETH: roce.RETH{VA: 0x1000, RKey: 5, Length: 7}, Payload: make([]byte, 7)}
		if err := x.Send([]soft.Packet{{Dst: dst, TOS: 0x6a, Data: data(src, dst, p)}}); err != nil {
			t.Fatal(err)
		}
		settle()
		f.cleanup()
	})
	file := filepath.Join(f.dir, "network.pcapng")
	if log := f.log.String(); !strings.Contains(log, "[dropped: filter]") || !strings.Contains(log, file) {
		t.Error(log)
	}
	if _, err := os.Stat(file); err != nil {
		t.Fatal(err)
	}
	command := exec.Command(tool.Path(t, "tshark"), "-r", file, "-n", "-o", "ip.check_checksum:TRUE", "-o", "udp.check_checksum:TRUE", "-T", "fields", "-E", "separator=,",
		"-e", "frame.time_relative", "-e", "ip.src", "-e", "ipv6.src", "-e", "udp.dstport", "-e", "infiniband.bth.opcode", "-e", "infiniband.bth.psn",
		"-e", "ip.checksum.status", "-e", "udp.checksum.status", "-e", "ip.dsfield.ecn", "-e", "ipv6.tclass.ecn", "-e", "frame.comment")
	out, err := command.Output()
	if err != nil {
		t.Fatal(err)
	}
	const want = `0.000000000,10.0.0.1,,4791,4,1,1,3,0,,
0.000000000,10.0.0.1,,4791,4,2,1,3,0,,dropped: filter
1.000000000,10.0.0.2,,4791,17,1,1,3,0,,
2.000000000,,fd00::1,4791,10,7,,4,,2,
`
	if string(out) != want {
		t.Errorf("tshark:\n%s\nnot\n%s", out, want)
	}
}
