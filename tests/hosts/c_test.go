package hosts

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/goverbs/verbs/internal/labtest"
)

// TestC runs this project's programs with C programs on the other machine.
func TestC(t *testing.T) {
	verbs := labtest.Built(t, "verbs")
	port := 7300
	rounds := "20"
	if testing.Short() {
		rounds = "3"
	}
	eachDriver(t, func(t *testing.T, d driver, p *peer) {
		type side struct {
			name string
			args []string
		}
		for _, r := range []struct {
			what     string
			rxeOnly  bool
			go_, c   []string
			server   []string // arguments to serve on a port
			client   []string // and to connect to a port of a host
			listens  string   // succeeds if a program listens on a port
			validate string
		}{
			{"rping", false, []string{verbs, "ping"}, []string{"rping"},
				[]string{"-s", "-S", "5000", "-p", "PORT"}, []string{"-c", "-V", "-C", rounds, "-S", "5000", "-p", "PORT", "-a", "HOST"},
				"rdma resource show cm_id | grep LISTEN | grep -q :PORT' '", ""},
			{"ibv_rc_pingpong", true, []string{verbs, "pingpong", "rc", "-c", "-d", d.device}, []string{"sh", "-c", cPingpong, "rc", "-c", "-d", d.device},
				[]string{"-n", rounds, "-s", "4096", "-p", "PORT"}, []string{"-n", rounds, "-s", "4096", "-p", "PORT", "HOST"},
				"ss -Hltn | grep -q :PORT' '", "usec/iter"},
		} {
			if r.rxeOnly && d.device != labtest.RXE {
				continue
			}
			for _, sides := range [][2]side{{{"C", r.c}, {"Go", r.go_}}, {{"Go", r.go_}, {"C", r.c}}} {
				for host := 1; host <= 2; host++ { // the server's
					port++
					text := func(args ...string) []string {
						for i, a := range args {
							a = strings.ReplaceAll(a, "PORT", fmt.Sprint(port))
							args[i] = strings.ReplaceAll(a, "HOST", fmt.Sprintf(d.addr, host))
						}
						return args
					}
					server, client := sides[0], sides[1]
					what := fmt.Sprintf("%s, %s serves, %s connects", r.what, server.name, client.name)
					t.Run(fmt.Sprintf("%s, served by host %d", what, host), func(t *testing.T) {
						began := time.Now()
						served := p.start(t, host, text(append(server.args[:len(server.args):len(server.args)], r.server...)...)...)
						p.run(t, host, text("sh", "-c", "until "+r.listens+"; do sleep 0.05; done")...)
						out := p.run(t, 3-host, text(append(client.args[:len(client.args):len(client.args)], r.client...)...)...)
						out += served()
						if strings.Contains(out, "invalid data") || !strings.Contains(out, r.validate) {
							t.Errorf("%s", out)
						}
						recordAs(t, what, fmt.Sprintf("server on host %d", host), d, "right", time.Since(began))
					})
				}
			}
		}
	})
}

// cPingpong finds the GID of the IPv4 address, which C requires as an option.
const cPingpong = `exec ibv_rc_pingpong -g $(basename $(grep -l :ffff:0a09: /sys/class/infiniband/rxe0/ports/1/gids/*)) "$@"`
