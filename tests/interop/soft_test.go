package interop

import (
	"flag"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/goverbs/verbs/cm"
	"github.com/goverbs/verbs/internal/labtest"
	"github.com/goverbs/verbs/internal/labtest/tool"
	"github.com/goverbs/verbs/soft"
)

// Devices in user space are in a network namespace of their own, as port 4791 belongs to the
// kernel's rxe elsewhere:
//
//	lab: C's programs                  namespace: tests, verbs
//	rxe1 on x0, 10.9.5.1 ══ link ══ x1, 10.9.5.2 verbs, 10.9.5.3 this process
const (
	softKernel  = "10.9.5.1"
	softProgram = "10.9.5.2"
	softSelf    = "10.9.5.3"
	softSpace   = "soft"
)

// softAll requests all cases of TestSoft, as make test-peers does, instead of one of each kind.
var softAll = os.Getenv("SOFT_PEERS") == "all"

// softCases returns the first case, or all.
func softCases[T any](all ...T) []T {
	if softAll {
		return all
	}
	return all[:1]
}

// TestSoft runs C's programs against devices in user space, on either side. It runs itself again
// in the namespace.
func TestSoft(t *testing.T) {
	labtest.RequireKernel(t)
	if os.Getenv("INTEROP_SOFT") == "" {
		makeSoftSpace(t)
		_, sub, _ := strings.Cut(flag.Lookup("test.run").Value.String(), "/")
		cmd := exec.Command("nsenter", append(append([]string{"--net=/run/netns/" + softSpace}, os.Args...), "-test.run", "^TestSoft$/"+sub)...)
		cmd.Env = append(os.Environ(), "INTEROP_SOFT=1")
		cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
		labtest.Check(t, cmd.Run())
		return
	}
	dev := labtest.Made(soft.New(soft.Options{Name: "self", Addrs: []netip.Addr{netip.MustParseAddr(softSelf)}}))(t)
	transport := cm.DefaultTransport()
	transport.Host = dev
	defer transport.CloseIdle()
	captured := []softTest{{"small rping", testSoftSmallRping}, {"udaddy", testSoftUdaddy}}
	if softAll {
		captured = append(captured, softTests[1:4]...)
	}
	// Not pingpong first: on Linux 7.3, also between two devices of rxe, its messages of 64 KiB
	// stop at times when packets are lost.
	lossy := softCases(softTests[2], softTests[0], softTests[1])
	for _, r := range labtest.Few(1, []struct {
		name  string
		tests []softTest
	}{
		{"unimpaired", softTests},
		{"captured", captured},
		{"loss 1%", lossy},
		{"delay 2ms reorder 99%", lossy},
	}) {
		t.Run(r.name, func(t *testing.T) {
			switch r.name {
			case "unimpaired":
			case "captured":
				captureSoft(t)
			default:
				impairSoft(t, r.name)
			}
			for _, test := range r.tests {
				t.Run(test.name, test.run)
			}
			t.Logf("%v", dev.Stats())
		})
	}
}

// makeSoftSpace makes the namespace and the link to it until the test ends.
func makeSoftSpace(t *testing.T) {
	t.Helper()
	labtest.Shell(t, `ip netns add soft
		ip link add x0 type veth peer name x1 netns soft
		ip addr add 10.9.5.1/24 dev x0
		ip link set x0 up
		ip -n soft addr add 10.9.5.2/24 dev x1
		ip -n soft addr add 10.9.5.3/24 dev x1
		ip -n soft link set lo up
		ip -n soft link set x1 up
		rdma link add rxe1 type rxe netdev x0`)
	t.Cleanup(func() { labtest.Shell(t, "rdma link delete rxe1; ip netns del soft") })
	labtest.UntilActive(t, "rxe1")
}

// impairSoft makes both directions of the link lose or reorder packets until the test ends.
func impairSoft(t *testing.T, netem string) {
	t.Helper()
	labtest.Shell(t, "modprobe sch_netem; tc qdisc add dev x1 root netem "+netem+"; "+
		strings.Join(outside, " ")+" tc qdisc add dev x0 root netem "+netem)
	t.Cleanup(func() {
		labtest.Shell(t, "tc qdisc del dev x1 root; "+strings.Join(outside, " ")+" tc qdisc del dev x0 root")
	})
}

// outside is the command that runs others outside of the namespace.
var outside = []string{"nsenter", "--net=/proc/1/ns/net"}

// startC starts a program of C outside of the namespace.
func startC(t *testing.T, args ...string) *program {
	t.Helper()
	return start(t, outside[0], append(outside[1:len(outside):len(outside)], args...)...)
}

// startVerbs starts verbs with a device in user space.
func startVerbs(t *testing.T, args ...string) *program {
	t.Helper()
	return start(t, "env", append([]string{"VERBS_SOFT=" + softProgram, built(t, "verbs")}, args...)...)
}

// captureSoft records what is on the link until the test ends, and then checks that tshark finds
// requests and answers and nothing that is malformed.
func captureSoft(t *testing.T) {
	t.Helper()
	tshark := tool.Path(t, "tshark")
	file := t.TempDir() + "/capture.pcap"
	dumpcap := exec.Command("dumpcap", "-q", "-P", "-i", "x1", "-w", file, "-f", "udp port 4791")
	labtest.Check(t, dumpcap.Start())
	labtest.Until(t, "dumpcap", func() bool { _, err := os.Stat(file); return err == nil })
	t.Cleanup(func() {
		labtest.Check(t, dumpcap.Process.Signal(os.Interrupt), dumpcap.Wait())
		// Otherwise it takes some payloads for Ethernet frames.
		out := labtest.Must(exec.Command(tshark, "-r", file, "--disable-heuristic", "eth_over_ib", "-T", "fields",
			"-e", "ip.src", "-e", "infiniband.bth.opcode", "-e", "_ws.malformed").Output())(t)
		seen := map[string]int{}
		for line := range strings.Lines(string(out)) {
			seen[strings.TrimSpace(line)]++
		}
		for line, n := range seen {
			if len(strings.Fields(line)) != 2 {
				t.Errorf("%d packets: %s", n, line)
			}
		}
		t.Logf("sources and opcodes: %v", seen)
		// SEND, READ and its answer, WRITE, acknowledgements, datagrams.
		for _, opcode := range []string{"4", "12", "16", "10", "17", "100"} {
			for _, addr := range []string{softKernel, softProgram} {
				if seen[addr+"\t"+opcode] == 0 {
					t.Errorf("no packet of opcode %s from %s", opcode, addr)
				}
			}
		}
	})
}
