package soak

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/cm"
	"github.com/goverbs/verbs/internal/labtest"
	"github.com/goverbs/verbs/soft"
	"github.com/goverbs/verbs/tests/workload"
)

// The server of TestSoak/soft has a device in user space, in a network namespace of its own, as
// port 4791 belongs to the kernel's rxe elsewhere. Both sides dial, and the network has faults:
//
//	lab: client                              namespace: server
//	rxe1 on x0, 10.9.5.1 ══ netem ══ x1, 10.9.5.2 device in user space
const (
	userSpace  = "soft"
	softKernel = "rxe1"
	softSpace  = "soaksoft"
)

var (
	softAddrs  = map[string]string{softKernel: "10.9.5.1", userSpace: "10.9.5.2"}
	softLayers = []layer{
		roundsLayer(workload.CM, 1, 256<<10),
		roundsLayer(workload.UD, 1, 16<<10),
		roundsLayer(workload.RConn, 1, 256<<10),
		roundsLayer(workload.RMsg, 1, 256<<10),
		roundsLayer(workload.RSock, 1, 1<<20),
		roundsLayer(workload.HTTP, 1, 512<<10),
		roundsLayer(workload.S3, 1, 256<<10),
		{&workload.Layer{Name: "churn", Listen: listenChurn}, 2, runChurnConn},
	}
	// softVictims are dialed by the kernel's device: they are processes, of which only one has the device in user space.
	softVictims = []layer{victimsLayer(workload.CM), victimsLayer(workload.RConn), victimsLayer(workload.RMsg), victimsLayer(workload.RSock)}
)

// dialedBySoft marks what the side with the device in user space has dialed.
const dialedBySoft = ", dialed by soft"

// faulty makes the side that of a run with faults. A client of datagrams is not told that the server
// took its rest for its end, so the server waits longer than that.
func (s *side) faulty(device string) {
	s.device, s.addr, s.layers, s.faults = device, softAddrs[device], slices.Concat(softLayers, softVictims), true
	workload.Idle = time.Minute + 2**pace
}

func soakSoft(t *testing.T) {
	labtest.RequireLong(t)
	n := newNetwork(t)
	s := new(side)
	s.faulty(softKernel)
	t.Cleanup(func() { workload.Idle = 0 })
	*stall = max(*stall, 3*time.Minute)
	r := newRun(t, s, userSpace)
	r.faulty = n
	for _, l := range softLayers {
		r.course.layers = append(r.course.layers, l.Name+dialedBySoft)
	}
	r.check()
}

// tolerates reports whether an error of a server is an end of a connection whose last packets were
// lost: the confirmation of its start, and perhaps the datagram of its end, when the client closed
// it at once; or the acknowledgement of the last message.
func (s *side) tolerates(err error) bool {
	if !s.faults {
		return false
	}
	if e, is := errors.AsType[*verbs.Error](err); is && e.Op == "accept" && (errors.Is(err, verbs.ErrDisconnected) || errors.Is(err, syscall.ETIMEDOUT)) {
		return true
	}
	e, is := errors.AsType[*net.OpError](err)
	return is && e.Op == "close" && (errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.ETIMEDOUT))
}

// softDevice is the device of the server.
type softDevice struct {
	*soft.Device
	clients *clients
	side    *side
}

func newSoftDevice(t *testing.T, s *side) *softDevice {
	t.Helper()
	s.faulty(userSpace)
	dev := labtest.Must(soft.New(soft.Options{Name: userSpace, Addrs: []netip.Addr{netip.MustParseAddr(s.addr)}}))(t)
	cm.DefaultTransport().Host = dev
	return &softDevice{Device: dev, side: s}
}

// dial starts clients, for addresses in JSON.
func (d *softDevice) dial(text string) (err error) {
	s := d.side
	var addrs map[string]string
	if err := json.Unmarshal([]byte(text), &addrs); err != nil {
		return err
	}
	s.stop, s.layers = make(chan struct{}), softLayers
	if d.clients, err = startClients(s, addrs, *seed); err != nil {
		return err
	}
	go func() {
		for !s.stopping() {
			d.clients.check(func(layer string, since time.Duration) {
				s.report(fmt.Sprintf("layer %s%s has made no progress for %v\n%s", layer, dialedBySoft, since.Round(time.Second), stacks()))
				s.cancel()
			})
			time.Sleep(250 * time.Millisecond)
		}
	}()
	return nil
}

func (d *softDevice) stop() error { return errors.Join(d.clients.end(), d.clients.endLoop()) }

// sample adds the device's part to a sample.
func (d *softDevice) sample(a *answer) {
	a.Layers, a.Objects = map[string]work{}, map[string]int{}
	if d.clients != nil {
		d.clients.addWork(a.Layers, dialedBySoft)
	}
	for name, n := range d.Resources() {
		a.Objects["soft "+name] = n
	}
}

// close closes the device, and returns what is left of it. The transport keeps a context open.
func (d *softDevice) close(t *testing.T) (left []string) {
	cm.DefaultTransport().CloseIdle()
	for name, n := range d.Resources() {
		if n != 0 {
			left = append(left, fmt.Sprintf("%s of the device in user space: %d", name, n))
		}
	}
	labtest.Check(t, d.Close())
	return left
}

// network is a link whose packets suffer.
type network struct {
	t      testing.TB
	x0, x1 *tc
}

// newNetwork makes the link and the namespace until the test ends.
//
// What goes to the kernel keeps its order, and acknowledgements are not lost there, as rxe (6.1 to
// 7.3) does not bear it: its QPs fail if answers to READs are out of order (check_ack). If it is
// sending a message of several packets again when an acknowledgement of all of it arrives, and the
// next one is lost, it sends the end of the message as a new one without data, or gives up
// (COMPST_UPDATE_COMP in rxe_completer, req_retry).
func newNetwork(t *testing.T) *network {
	n := &network{t: t}
	labtest.ExpectWarning(t, "[rdma_rxe]") // about late and duplicate packets
	// A bit that is turned over in an ARP packet would end all connections.
	n.shell(`modprobe -a sch_netem sch_ingress cls_u32 act_gact
		ip netns add ` + softSpace + `
		ip link add x0 address 02:00:00:00:05:01 type veth peer name x1 address 02:00:00:00:05:02 netns ` + softSpace + `
		ip addr add 10.9.5.1/24 dev x0
		ip link set x0 up
		ip neigh replace 10.9.5.2 lladdr 02:00:00:00:05:02 dev x0 nud permanent
		tc qdisc add dev x0 root netem limit 10000
		tc qdisc add dev x0 ingress
		tc filter add dev x0 ingress prio 1 protocol ip u32 match u8 17 0xff at 9 match u8 17 0xff at 28 action pass
		tc actions add action pass random netrand pass 1 index 100
		tc filter add dev x0 ingress prio 2 protocol ip u32 match u32 0 0 action gact index 100
		ip netns exec ` + softSpace + ` sh -exc "
			ip addr add 10.9.5.2/24 dev x1
			ip link set lo up
			ip link set x1 up
			ip neigh replace 10.9.5.1 lladdr 02:00:00:00:05:01 dev x1 nud permanent
			tc qdisc add dev x1 root netem limit 10000"
		rdma link add ` + softKernel + ` type rxe netdev x0`)
	t.Cleanup(func() { n.shell("rdma link delete " + softKernel + "; ip netns del " + softSpace) })
	n.x0, n.x1 = n.newTC("tc", "-batch", "-"), n.newTC("tc", "-n", softSpace, "-batch", "-")
	labtest.UntilActive(t, softKernel)
	return n
}

func (n *network) shell(script string) {
	n.t.Helper()
	if err := shell(script); err != nil {
		n.t.Errorf("%s: %v", script, err)
	}
}

// tc is a running tc(8), which reads commands: starting one takes long on a busy machine.
type tc struct{ io.WriteCloser }

func (n *network) newTC(args ...string) *tc {
	n.t.Helper()
	cmd := exec.Command(args[0], args[1:]...)
	cmd.Stderr = os.Stderr
	c := &tc{labtest.Must(cmd.StdinPipe())(n.t)}
	labtest.Check(n.t, cmd.Start())
	n.t.Cleanup(func() { labtest.Check(n.t, c.Close(), cmd.Wait()) })
	return c
}

// fault is what happens to packets.
type fault struct {
	name string
	x0   string // options of tc-netem(8) for packets of the kernel
	x1   string // for those of the device in user space
	lost int    // one in so many of these is lost; 0 if none is
	most time.Duration
}

var faultKinds = []fault{
	{"none", "", "", 0, 10 * time.Second},
	{"loss of 0.3 %", "loss 0.3%", "", 333, 20 * time.Second},
	{"loss of 3 %", "loss 3%", "", 33, 10 * time.Second},
	{"duplicates of 3 %", "duplicate 3%", "duplicate 3%", 0, 15 * time.Second},
	{"2 % overtaken within 1 ms", "delay 1ms reorder 98%", "", 0, 10 * time.Second},
	{"a bit of 1 % turned over", "corrupt 1%", "", 0, 10 * time.Second},
	{"delay of 5 ms", "delay 5ms", "delay 5ms", 0, 10 * time.Second},
	{"delay of 2 ms, loss of 0.5 %, duplicates of 1 %, a bit of 0.3 %", "delay 2ms loss 0.5% duplicate 1% corrupt 0.3%", "delay 2ms duplicate 1%", 200, 15 * time.Second},
	{"partition", "loss 100%", "", 1, time.Second},
}

// apply causes a fault of the packets of x0, x1, or both.
func (n *network) apply(f fault, x0, x1 bool) {
	if !x0 {
		f.x0 = ""
	}
	if !x1 {
		f.x1, f.lost = "", 0
	}
	loss := "pass 1"
	if f.lost > 0 {
		loss = fmt.Sprint("drop ", f.lost)
	}
	// The queues are not replaced, which would drop packets with an error.
	set := func(dev, netem string) string {
		if !strings.Contains(netem, "corrupt") { // which stays if it is not named
			netem += " corrupt 0%"
		}
		return "qdisc change dev " + dev + " root netem limit 10000 " + netem + "\n"
	}
	_, err := io.WriteString(n.x0, set("x0", f.x0)+"actions replace action pass random netrand "+loss+" index 100\n")
	_, err1 := io.WriteString(n.x1, set("x1", f.x1))
	if err := errors.Join(err, err1); err != nil {
		n.t.Error(err)
	}
}

// start causes one fault after the other until end is called.
func (n *network) start(seed uint64) (end func()) {
	r := rand.New(rand.NewPCG(seed, 0))
	stop, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		defer n.apply(fault{}, true, true)
		for stopped := false; !stopped; {
			f := faultKinds[r.IntN(len(faultKinds))]
			ends := r.IntN(3)
			n.apply(f, ends != 0, ends != 1)
			select {
			case <-time.After(f.most/4 + time.Duration(r.Int64N(int64(f.most*3/4)))):
			case <-stop:
				stopped = true
			}
		}
	}()
	return sync.OnceFunc(func() {
		close(stop)
		<-ended
	})
}
