package examples

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/goverbs/verbs/internal/labtest"
	"github.com/goverbs/verbs/uverbs"
)

// TestContainer starts examples/container as docs/deploy.md does with docker: with two device
// nodes, 64 MiB of locked memory and the host's network. It asks the service for a page and,
// inside the container, for its health, and stops it.
func TestContainer(t *testing.T) {
	labtest.RequireKernel(t)
	labtest.Each(t, func(t *testing.T, device string) {
		addr := labtest.AddrOf(device) + ":8080"
		c := labtest.StartContainer(t, labtest.ContainerOptions{
			Program: labtest.Built(t, "container"),
			Env:     []string{"ADDR=" + addr},
			Devices: []string{"/dev/infiniband/rdma_cm", labtest.Must(uverbs.Find(device))(t).Node},
			MemLock: 64 << 20,
		})
		logged := func(msg string) {
			t.Helper()
			var line struct{ Msg, Network string }
			for c.Stdout.Scan() {
				if err := json.Unmarshal(c.Stdout.Bytes(), &line); err != nil {
					t.Fatalf("%v: %s", err, c.Stdout.Text())
				}
				if line.Msg == msg {
					if line.Network != "" && line.Network != "rdma" {
						t.Errorf("logged %s", c.Stdout.Text())
					}
					return
				}
			}
			t.Fatalf("%q is not logged\n%v\n%s", msg, c.Stop(), c.Stderr())
		}
		logged("serving")
		out, errs, exit := run(t, "http", "get", "http://"+addr+"/world")
		if want := "connected by rdma\nhello world\n"; out != want || errs != "" || exit != 0 {
			t.Errorf("the client: exit status %d, output\n%s%s", exit, out, errs)
		}
		logged("request")

		check := func(addr string) (string, error) {
			cmd := c.Exec(t, "check")
			cmd.Env = []string{"ADDR=" + addr}
			out, err := cmd.CombinedOutput()
			return string(out), err
		}
		if out, err := check(addr); err != nil || out != "" {
			t.Errorf("the health check: %v\n%s", err, out)
		}
		if out, err := check(labtest.AddrOf(device) + ":8081"); err == nil || !strings.Contains(out, "refused") && !strings.Contains(out, "connection rejected: ") { // erdma's error for TCP's refusal
			t.Errorf("the health check of a service that does not run: %v\n%s", err, out)
		}
		if err := c.Stop(); err != nil {
			t.Errorf("the service: %v\n%s", err, c.Stderr())
		}
	})
}
