package rdmadev

import (
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/goverbs/verbs/internal/labtest"
)

// TestExporterContainer scrapes verbs exporter in a container that has no device node, no
// privilege and nothing but this program.
func TestExporterContainer(t *testing.T) {
	labtest.Require(t)
	c := labtest.StartContainer(t, labtest.ContainerOptions{
		Program: labtest.Built(t, "verbs"),
		Args:    []string{"exporter", "--listen", "127.0.0.1:0"},
	})
	c.Stdout.Scan()
	addr, ok := strings.CutPrefix(c.Stdout.Text(), "listening on ")
	if !ok {
		t.Fatalf("it prints %q\n%v\n%s", c.Stdout.Text(), c.Stop(), c.Stderr())
	}
	resp := labtest.Must(http.Get("http://" + addr + "/metrics"))(t)
	defer resp.Body.Close()
	text := string(labtest.Must(io.ReadAll(resp.Body))(t))
	for _, line := range []string{
		`node_infiniband_state_id{device="rxe0",port="1"} 4`,
		`node_infiniband_state_id{device="siw0",port="1"} 4`,
		`rdma_hw_sent_pkts_total{device="rxe0",port="1"} `,
		`rdma_resources{device="siw0",kind="qp"} `,
		`rdma_read_failures 0`,
	} {
		if !strings.Contains(text, "\n"+line) {
			t.Errorf("there is no %s in\n%s", line, text)
		}
	}
	if err := c.Stop(); err != nil {
		t.Errorf("verbs exporter: %v\n%s", err, c.Stderr())
	}
}
