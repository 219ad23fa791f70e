package interop

import (
	"os/exec"
	"strconv"
	"testing"

	"github.com/goverbs/verbs/internal/labtest"
)

// TestNamespaces connects two network namespaces, each with a device of its own on its end of a
// link, and with Go on one side and C on the other.
func TestNamespaces(t *testing.T) {
	labtest.RequireLong(t)
	labtest.RequireGuest(t, "makes devices")
	for _, kind := range []string{"rxe", "siw"} {
		t.Run(kind, func(t *testing.T) {
			if kind == "rxe" && labtest.Older(7, 1) {
				t.Skip("rxe works in other than the initial namespace since Linux 7.1")
			}
			t.Cleanup(func() {
				labtest.Shell(t, "rdma link delete left; rdma link delete right; ip netns del left; ip netns del right")
			})
			labtest.Shell(t, `ip netns add left; ip netns add right
				ip -n left link add w0 type veth peer name w0 netns right
				ip -n left addr add 10.9.6.1/24 dev w0; ip -n right addr add 10.9.6.2/24 dev w0
				for n in left right; do
					ip -n $n link set lo up; ip -n $n link set w0 up
					ip netns exec $n rdma link add $n type `+kind+` netdev w0
				done`)
			run := func(namespace string, args ...string) *program {
				return start(t, "ip", append([]string{"netns", "exec", namespace}, args...)...)
			}
			for _, r := range [][2]string{{built(t, "verbs") + " ping", "rping"}, {"rping", built(t, "verbs") + " ping"}} {
				rpingPorts++
				port := strconv.Itoa(rpingPorts)
				server := run("left", "sh", "-c", "exec "+r[0]+" -s -C 10 -a 10.9.6.1 -p "+port)
				labtest.Until(t, "server", func() bool {
					return exec.Command("ip", "netns", "exec", "left", "sh", "-c", "rdma resource show cm_id | grep -q 10.9.6.1:"+port).Run() == nil
				})
				run("right", "sh", "-c", "exec "+r[1]+" -c -V -C 10 -a 10.9.6.1 -p "+port).Wait()
				server.Wait()
			}
		})
	}
}
