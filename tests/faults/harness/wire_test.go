package harness

import (
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/goverbs/verbs/internal/labtest"
)

// wire connects two devices of one machine by a veth. Packets of a host to itself normally use
// lo, and rxe loops back packets to its own MAC address. So there are two devices, and routes
// send packets for the address of one out of the other.
//
//	wa 10.9.8.1 ◄──── veth, netem on both ends ────► wb 10.9.8.2
//	device 8                                         device 9
type wire struct {
	t testing.TB
	a string // address of the dialing side's end
	b string // of the listening side's

	counted [2]int // totals at the last call of netem
}

func (w *wire) sh(line string) string {
	w.t.Helper()
	out, err := exec.Command("sh", "-c", line).CombinedOutput()
	if err != nil {
		w.t.Fatalf("%s: %v: %s", line, err, out)
	}
	return string(out)
}

// ip runs a batch of commands of ip(8).
func (w *wire) ip(commands string) {
	w.t.Helper()
	cmd := exec.Command("ip", "-batch", "-")
	cmd.Stdin = strings.NewReader(commands)
	if out, err := cmd.CombinedOutput(); err != nil {
		w.t.Fatalf("%v: %s", err, out)
	}
}

// newWire creates a wire, until the test ends, between two devices of the same type as one
// of the lab's. rxe logs warnings about late and duplicate packets.
func newWire(t testing.TB, device string) *wire {
	t.Helper()
	labtest.ExpectWarning(t, "[rdma_rxe]")
	kind := kinds[device]
	w := &wire{t: t, a: "10.9.8.1", b: "10.9.8.2"}
	w.sh("modprobe sch_netem")
	// netem must lose segments, not the 64 KiB that siw sends at a time.
	w.ip(`link add wa gso_max_segs 1 gso_max_size 1500 type veth peer name wb
link set wb gso_max_segs 1 gso_max_size 1500
`)
	for _, end := range []string{"wa", "wb"} {
		for file, value := range map[string]string{"ipv4/conf/" + end + "/accept_local": "1", "ipv4/conf/" + end + "/rp_filter": "0", "ipv6/conf/" + end + "/disable_ipv6": "1"} {
			labtest.Check(t, os.WriteFile("/proc/sys/net/"+file, []byte(value), 0o644))
		}
	}
	w.ip(`link set wa up
link set wb up
addr add 10.9.8.1/32 dev wa
addr add 10.9.8.2/32 dev wb
rule add pref 1 iif wa lookup local
rule add pref 2 iif wb lookup local
route add 10.9.8.2 dev wa src 10.9.8.1 table 1001
route add 10.9.8.1 dev wb src 10.9.8.2 table 1002
rule add pref 3 to 10.9.8.2 lookup 1001
rule add pref 4 to 10.9.8.1 lookup 1002
rule add pref 9 lookup local
rule del pref 0
`)
	t.Cleanup(func() {
		for _, d := range []string{"8", "9"} {
			if err := netlink.RdmaLinkDel(kind + d); err != nil {
				t.Error(err)
			}
		}
		w.ip(`rule add pref 0 lookup local
rule del pref 9
rule del pref 1
rule del pref 2
rule del pref 3
rule del pref 4
link del wa
`)
	})
	for end, d := range map[string]string{"wa": kind + "8", "wb": kind + "9"} {
		labtest.Check(t, netlink.RdmaLinkAdd(d, kind, end))
		waitFor(t, func() error { return checkDevice(d) })
	}
	w.netem("")
	return w
}

// netem applies options of tc-netem(8) to the packets of both ends; "" removes them. It changes
// the qdisc instead of replacing it, which would drop packets: that fails rxe's queue pairs, and
// the connection manager's as well.
func (w *wire) netem(what string) {
	w.t.Helper()
	if !strings.Contains(what, "corrupt") { // which stays if it is not named
		what += " corrupt 0%"
	}
	for _, end := range []string{"wa", "wb"} {
		w.sh("tc qdisc replace dev " + end + " root netem limit 10000 " + what)
	}
	w.counted = w.totals()
}

// packetCounts returns how many packets went over the wire, and how many were dropped, since the
// last call of netem.
func (w *wire) packetCounts() (packets, dropped int) {
	w.t.Helper()
	now := w.totals()
	return now[0] - w.counted[0], now[1] - w.counted[1]
}

// totals returns the numbers of packets and of dropped packets.
func (w *wire) totals() (counts [2]int) {
	w.t.Helper()
	for _, end := range []string{"wa", "wb"} {
		out := w.sh("tc -s qdisc show dev " + end)
		_, rest, _ := strings.Cut(out, "bytes ")
		var p, d int
		if _, err := fmt.Sscanf(rest, "%d pkt (dropped %d", &p, &d); err != nil {
			w.t.Fatalf("%v: %s", err, out)
		}
		counts[0], counts[1] = counts[0]+p, counts[1]+d
	}
	return counts
}

// lostDREQs returns how many messages about the end of a connection were sent by rxe9 and have
// not reached rxe8.
func (w *wire) lostDREQs() int {
	w.t.Helper()
	count := func(file string) int {
		text := labtest.Must(os.ReadFile("/sys/class/infiniband/" + file + "/dreq"))(w.t)
		return labtest.Must(strconv.Atoi(strings.TrimSpace(string(text))))(w.t)
	}
	return count("rxe9/ports/1/cm_tx_msgs") - count("rxe8/ports/1/cm_rx_msgs")
}
