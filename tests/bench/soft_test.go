package bench

import (
	"strconv"
	"testing"

	"github.com/goverbs/verbs/internal/labtest"
)

// TestSoft compares devices in user space with the kernel's rxe, by verbs perf over links of the
// same kind:
//
//	rxe1 on x0, 10.9.6.1 ══ x1, 10.9.6.2 with rxe2
//	namespace perf1: y0, 10.9.7.1 ══ y1, 10.9.7.2: namespace perf2
//
// As rxe has no device in a namespace, rules of routing make the kernel use the link between two
// of its own addresses.
func TestSoft(t *testing.T) {
	labtest.RequireKernel(t)
	verbs := labtest.Built(t, "verbs")
	t.Cleanup(func() {
		labtest.Shell(t, `rdma link delete rxe1; rdma link delete rxe2; ip link delete x0
			ip rule add pref 0 lookup local; for n in 1 2 10 11 100; do ip rule delete pref $n; done
			ip netns delete perf1; ip netns delete perf2`)
	})
	labtest.Shell(t, `ip link add x0 address 02:00:00:00:06:01 type veth peer name x1 address 02:00:00:00:06:02
		ip rule add pref 1 iif x0 lookup local; ip rule add pref 2 iif x1 lookup local
		ip rule add pref 10 from 10.9.6.1 to 10.9.6.2 lookup 1001; ip rule add pref 11 from 10.9.6.2 to 10.9.6.1 lookup 1002
		ip rule add pref 100 lookup local; ip rule delete pref 0
		for n in 0 1; do
			echo 1 >/proc/sys/net/ipv4/conf/x$n/accept_local
			echo 0 >/proc/sys/net/ipv4/conf/x$n/rp_filter
			ip addr add 10.9.6.$((n + 1))/32 dev x$n
			ip link set x$n up
		done
		ip route add 10.9.6.2 dev x0 src 10.9.6.1 table 1001; ip route add 10.9.6.1 dev x1 src 10.9.6.2 table 1002
		ip neigh replace 10.9.6.2 lladdr 02:00:00:00:06:02 dev x0 nud permanent
		ip neigh replace 10.9.6.1 lladdr 02:00:00:00:06:01 dev x1 nud permanent
		rdma link add rxe1 type rxe netdev x0; rdma link add rxe2 type rxe netdev x1
		ip netns add perf1; ip netns add perf2
		ip link add y0 netns perf1 type veth peer name y1 netns perf2
		for n in 0 1; do
			in="ip -n perf$((n + 1))"
			$in addr add 10.9.7.$((n + 1))/24 dev y$n; $in link set y$n up; $in link set lo up
		done`)
	labtest.UntilActive(t, "rxe1")
	labtest.UntilActive(t, "rxe2")
	soft := func(n string) []string {
		return []string{"ip", "netns", "exec", "perf" + n, "env", "VERBS_SOFT=10.9.7." + n, verbs}
	}
	servePerf(t, soft("2"), "10.9.7.2")
	servePerf(t, []string{verbs}, "rxe2")
	for _, work := range []struct {
		name string
		args []string
		n    int
	}{
		{"SEND of 8 bytes, events", []string{"send", "lat", "-s", "8", "-e"}, 500},
		{"SEND of 64 KiB", []string{"send", "bw", "-s", "65536"}, 100},
		{"WRITE of 64 KiB", []string{"write", "bw", "-s", "65536"}, 100},
		{"READ of 64 KiB", []string{"read", "bw", "-s", "65536"}, 100},
	} {
		t.Run(work.name, func(t *testing.T) {
			n := max(scaled(work.n), 100)
			args := append(work.args, "-n", strconv.Itoa(n))
			rs := pairs(min(*reps, 12), 0,
				func() result { return perf(t, soft("1"), "10.9.7.2", n, args) },
				func() result { return perf(t, []string{verbs}, "10.9.6.2", n, append(args, "-d", "rxe1")) })
			line := comparison{group: "soft", name: work.name, unit: "µs", better: lower, beside: "rxe"}
			line.ours, line.c = rs[0].figure("figure"), rs[1].figure("figure")
			if work.args[1] == "bw" {
				line.unit, line.better = "MiB/s", higher
				line.ours, line.c = times(line.ours, 65536.0/(1<<20)), times(line.c, 65536.0/(1<<20))
			}
			line.report(t)
		})
	}
}
