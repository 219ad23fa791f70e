package hosts

import (
	"context"
	"fmt"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/goverbs/verbs/internal/labtest"
	"github.com/goverbs/verbs/tests/interop/pingpong"
)

// cRounds returns how many messages are exchanged with C.
func cRounds() int {
	if testing.Short() {
		return 3
	}
	return 20
}

// TestRping runs verbs ping on one machine and C's rping on the other.
func TestRping(t *testing.T) {
	verbs := labtest.Built(t, "verbs")
	port := uint16(7300)
	eachDriver(t, func(t *testing.T, d driver, p *peer) {
		c, g := []string{"rping"}, []string{verbs, "ping"}
		for _, r := range []struct {
			what           string
			server, client []string
		}{
			{"rping, C serves, Go connects", c, g},
			{"rping, Go serves, C connects", g, c},
		} {
			for host := 1; host <= 2; host++ { // the server's
				t.Run(fmt.Sprintf("%s, served by host %d", r.what, host), func(t *testing.T) {
					for try := 1; ; try++ {
						port++
						at := fmt.Sprint(port)
						served := p.start(t, host, append(r.server, "-s", "-S", "5000", "-p", at)...)
						p.awaitCM(t, host, at)
						connected := p.start(t, 3-host, append(r.client, "-c", "-V", "-C", fmt.Sprint(cRounds()), "-S", "5000", "-p", at, "-a", fmt.Sprintf(d.addr, host))...)
						if d.device == labtest.SIW && r.client[0] == "rping" && try < 10 && p.missedData(t, host, port) {
							t.Log("siw has overlooked what C sent first")
							// One may end with the other: 1 is that there is none.
							p.run(t, 3-host, "sh", "-c", "pkill -x rping || test $? = 1")
							p.run(t, host, "sh", "-c", "pkill -f '[p]ing -s' || test $? = 1")
							continue
						}
						connected()
						served()
						return
					}
				})
			}
		}
	})
}

// TestPingPong exchanges messages between C's ibv_rc_pingpong on the peer and this process.
func TestPingPong(t *testing.T) {
	eachDriver(t, func(t *testing.T, d driver, p *peer) {
		if d.device != labtest.RXE { // which iWARP does not support
			return
		}
		o := pingpong.Options{Type: "rc", Size: 4096, Iters: cRounds(), Events: true}
		c := append([]string{"sh", "-c", cPingpong, "rc", d.device}, o.Args()...)
		ctx := labtest.Within(t, time.Minute)
		check := func(t *testing.T, err error, out string) {
			t.Helper()
			if labtest.Check(t, err); strings.Contains(out, "invalid data") || !strings.Contains(out, "usec/iter") {
				t.Errorf("%s", out)
			}
		}
		t.Run("C serves, Go connects", func(t *testing.T) {
			const port = "18600"
			served := p.start(t, 2, append(c, "-p", port)...)
			p.awaitTCP(t, 2, port)
			conn := labtest.Must(net.Dial("tcp", net.JoinHostPort(fmt.Sprintf(d.addr, 2), port)))(t)
			err := o.Run(ctx, t, labtest.OpenDevice(t, d.device), conn, true)
			check(t, err, served())
		})
		t.Run("Go serves, C connects", func(t *testing.T) {
			l := labtest.Must(net.Listen("tcp", d.hostAddr(1)))(t)
			defer l.Close()
			defer context.AfterFunc(ctx, func() { l.Close() })()
			_, port, _ := net.SplitHostPort(l.Addr().String())
			connected := p.start(t, 2, append(c, "-p", port, fmt.Sprintf(d.addr, 1))...)
			err := o.Run(ctx, t, labtest.OpenDevice(t, d.device), labtest.Must(l.Accept())(t), false)
			check(t, err, connected())
		})
	})
}

// cPingpong runs a pingpong of a type on a device with the GID of its IPv4 address and RoCE v2,
// which C requires as an option.
const cPingpong = `port=/sys/class/infiniband/$1/ports/1
for gid in $(grep -l :ffff:0a09: $port/gids/*); do
	i=$(basename $gid)
	if grep -q v2 $port/gid_attrs/types/$i; then exec ibv_$0_pingpong -g $i -d "$@"; fi
done
echo "$1 has no GID for RoCE v2 and IPv4"; exit 1`
