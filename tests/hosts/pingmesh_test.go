package hosts

import (
	"fmt"
	"io"
	"net/http"
	"os"
	"regexp"
	"testing"

	"github.com/goverbs/verbs/internal/labtest"
)

// TestPingMesh runs an agent on each machine until both have a window with answers and without
// loss.
func TestPingMesh(t *testing.T) {
	p := dialPeer(t)
	for device, addr := range map[string]string{labtest.RXE: drivers[0].addr, adapter: adapterAddr} {
		t.Run(device, func(t *testing.T) {
			if _, err := os.Stat("/sys/class/infiniband/" + device); err != nil {
				t.Skip("needs LAB_NIC=connectx")
			}
			var ended []func() string
			at := func(host int) string { return fmt.Sprintf(addr, host) + ":7473" }
			for host := 1; host <= 2; host++ {
				ended = append(ended, p.start(t, host, labtest.Built(t, "pingmesh"), "-d", device, "-listen", at(host), "-peers", at(3-host),
					"-rate", "20", "-window", "500ms", "-timeout", "1m")) // slow machines are late, no more
			}
			for host := 1; host <= 2; host++ {
				row := regexp.MustCompile(fmt.Sprintf(`(?m)^ *%s +%s +%[1]s +0 +[1-9]\d* +0 `, device, regexp.QuoteMeta(at(3-host))))
				labtest.Until(t, "answers", func() bool {
					resp, err := http.Get("http://" + at(host))
					if err != nil {
						return false
					}
					defer resp.Body.Close()
					text, _ := io.ReadAll(resp.Body)
					return row.Match(text)
				})
			}
			for host, wait := range ended {
				p.run(t, host+1, "pkill", "-INT", "-x", "pingmesh")
				t.Log(wait())
			}
		})
	}
}
