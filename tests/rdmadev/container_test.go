package rdmadev

import (
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/goverbs/verbs/internal/labtest"
)

// TestExporterContainer scrapes verbs-exporter in a container that has no device node, no
// privilege and nothing but this program.
func TestExporterContainer(t *testing.T) {
	labtest.RequireKernel(t)
	const addr = "127.0.0.1:9879"
	c := labtest.StartContainer(t, labtest.ContainerOptions{
		Program: labtest.Built(t, "verbs-exporter"),
		Args:    []string{"--web.listen-address=" + addr},
	})
	// A slow machine may take longer than a scrape waits.
	text, ctx := "", labtest.Within(t, 2*time.Minute)
	for !strings.Contains(text, `rdma_scrape_device_success{device="rxe0"} 1`) || !strings.Contains(text, `rdma_scrape_device_success{device="siw0"} 1`) {
		if ctx.Err() != nil {
			t.Fatalf("not all devices are read:\n%s", text)
		}
		resp, err := http.Get("http://" + addr + "/metrics")
		if err != nil { // it does not listen yet
			time.Sleep(10 * time.Millisecond)
			continue
		}
		text = string(labtest.Must(io.ReadAll(resp.Body))(t))
		resp.Body.Close()
	}
	for _, line := range []string{
		`node_infiniband_state_id{device="rxe0",port="1"} 4`,
		`node_infiniband_state_id{device="siw0",port="1"} 4`,
		`rdma_hw_sent_pkts_total{device="rxe0",port="1"} `,
		`rdma_resources{device="siw0",kind="qp"} `,
		`rdma_netlink_up 1`,
		`rdma_read_failures 0`,
	} {
		if !strings.Contains(text, "\n"+line) {
			t.Errorf("there is no %s in\n%s", line, text)
		}
	}
	if err := c.Stop(); err != nil {
		t.Errorf("verbs-exporter: %v\n%s", err, c.Stderr())
	}
}
