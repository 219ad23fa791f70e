package examples

import (
	"encoding/json"
	"net/http"
	"os"
	"os/exec"
	"regexp"
	"testing"
	"time"

	"github.com/goverbs/verbs/internal/labtest"
	"github.com/goverbs/verbs/uverbs"
)

// TestPingMesh runs two agents that probe each other over a device, kills one, and ends the other
// by a signal.
func TestPingMesh(t *testing.T) {
	each(t, func(t *testing.T, device, _ string) {
		const first, second = "127.9.2.1:7473", "127.9.2.2:7473"
		if !labtest.Soft && !labtest.Has(t, device, uverbs.FeatureUD) {
			out, errs, exit := run(t, "pingmesh", "-d", device, "-listen", first)
			refused(t, out, errs, exit, regexp.MustCompile(`^`+device+` has no datagrams \(UD\): create QP .*(operation not supported|unsupported operation)\n$`))
			return
		}
		start := func(listen, peer string) *exec.Cmd {
			cmd := command(t, labtest.Within(t, time.Minute), "pingmesh", "-d", device, "-listen", listen, "-peers", peer,
				"-rate", "20", "-paths", "2", "-window", "500ms", "-timeout", "5s") // slow machines answer within that
			cmd.Stderr = os.Stderr
			labtest.Check(t, cmd.Start())
			t.Cleanup(func() { cmd.Process.Kill() })
			return cmd
		}
		type row struct {
			Answered, Lost int
			RTT            struct {
				Median time.Duration `json:"median_ns"`
			}
		}
		// rows returns what an agent says of the paths to the other.
		rows := func(addr string) (report struct{ Pairs []row }) {
			resp, err := http.Get("http://" + addr + "/json")
			if err != nil {
				return report
			}
			defer resp.Body.Close()
			labtest.Check(t, json.NewDecoder(resp.Body).Decode(&report))
			return report
		}
		a, b := start(first, second), start(second, first)
		for _, addr := range []string{first, second} {
			labtest.Until(t, "answers on both paths", func() bool {
				p := rows(addr).Pairs
				return len(p) == 2 && p[0].Answered > 0 && p[1].Answered > 0 && p[0].RTT.Median > 0 && p[1].RTT.Median > 0
			})
		}
		b.Process.Kill()
		b.Wait()
		labtest.Until(t, "losses alone", func() bool {
			p := rows(first).Pairs
			return len(p) == 2 && p[0].Answered == 0 && p[0].Lost > 0
		})
		start(second, first)
		labtest.Until(t, "answers of a new process", func() bool {
			p := rows(first).Pairs
			return len(p) == 2 && p[0].Answered > 0 && p[0].Lost == 0
		})
		labtest.Check(t, a.Process.Signal(os.Interrupt))
		if err := a.Wait(); err != nil {
			t.Error(err)
		}
	})
}
