package exporter

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
	"unicode/utf8"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil/promlint"
	"github.com/prometheus/common/expfmt"

	"github.com/goverbs/verbs/rdmadev"
)

// gather returns what a registry with the collectors has, as text and by promlint's rules.
func gather(t *testing.T, collectors ...prometheus.Collector) string {
	t.Helper()
	reg := prometheus.NewPedanticRegistry()
	for _, c := range collectors {
		if err := reg.Register(c); err != nil {
			t.Fatal(err)
		}
	}
	families, err := reg.Gather()
	if err != nil {
		t.Error(err)
	}
	var b strings.Builder
	for _, f := range families {
		if _, err := expfmt.MetricFamilyToText(&b, f); err != nil {
			t.Error(err)
		}
	}
	problems, err := promlint.NewWithMetricFamilies(families).Lint()
	if err != nil || len(problems) > 0 {
		t.Errorf("promlint: %v, %v", problems, err)
	}
	return b.String()
}

// sysfs returns a source whose class infiniband has the files.
func sysfs(t *testing.T, files map[string]string) rdmadev.Source {
	t.Helper()
	sys := t.TempDir()
	for name, text := range files {
		path := filepath.Join(sys, "class/infiniband", name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return rdmadev.Source{Sys: sys}
}

func want(t *testing.T, text string, lines ...string) {
	t.Helper()
	for _, line := range lines {
		if !strings.Contains("\n"+text, "\n"+line) {
			t.Errorf("there is no %s in\n%s", line, text)
		}
	}
}

// TestHostileNames: whatever names and files hold, the registry accepts all metrics of the
// machine, and what is left out is counted.
func TestHostileNames(t *testing.T) {
	files := map[string]string{
		"x0/board_id":                          "caf\xe9 \"\\\n",
		"x0/ports/1/state":                     "4: ACTIVE\n",
		"x0/ports/1/hw_counters/rx bytes":      "1",
		"x0/ports/1/hw_counters/rx-bytes":      "2",
		"x0/ports/1/hw_counters/rx_bytes":      "3",
		"x0/ports/1/hw_counters/negative":      "-1",
		"x0/ports/1/hw_counters/hex":           "0x10",
		"x0/ports/1/hw_counters/two_lines":     "1\n2",
		"x0/ports/1/hw_counters/none":          "N/A",
		"x0/ports/1/hw_counters/odd\nname\xff": "7",
		"x0/ports/1/hw_counters/active_qps":    "9",
		"x0/ports/1/hw_counters/current_rate":  "5",
		"y0/ports/1/state":                     "1: DOWN\n",
	}
	text := gather(t, NewDeviceCollector(DeviceOptions{Source: sysfs(t, files), Timeout: time.Minute}))
	if !utf8.ValidString(text) {
		t.Errorf("not UTF-8:\n%s", text)
	}
	want(t, text, "rdma_devices 2\n", "rdma_sysfs_up 1\n", "rdma_read_failures 5\n", `node_infiniband_info{board_id="caf`+"\ufffd",
		`# HELP rdma_hw_odd_name__total Counter odd\nname`, `rdma_hw_rx_bytes_total{device="x0",port="1"} `,
		"# TYPE rdma_hw_active_qps gauge\n", "# TYPE rdma_hw_current_rate gauge\n", `rdma_hw_active_qps{device="x0",port="1"} 9`,
		`node_infiniband_state_id{device="y0",port="1"} 1`)

	files = map[string]string{"z\xfe/ports/1/state": "4: ACTIVE", "z\xff/ports/1/state": "4: ACTIVE"}
	text = gather(t, NewDeviceCollector(DeviceOptions{Source: sysfs(t, files), Timeout: time.Minute})) // the labels of the second are those of the first
	want(t, text, "rdma_devices 2\n", "rdma_read_failures 7\n", "node_infiniband_state_id{device=\"z\ufffd\",port=\"1\"} 4")
}

// TestNothingSeen: where nothing is seen, the metrics say so.
func TestNothingSeen(t *testing.T) {
	want(t, gather(t, NewDeviceCollector(DeviceOptions{Source: sysfs(t, nil)})), "rdma_devices 0\n", "rdma_sysfs_up 0\n", "rdma_read_failures 0\n")
}

// TestFilter: nothing is read of devices that are not selected.
func TestFilter(t *testing.T) {
	source := sysfs(t, map[string]string{"a0/ports/1/state": "4: ACTIVE", "b0/ports/1/state": "unreadable"})
	source.Filter = func(name string) bool { return name == "a0" }
	text := gather(t, NewDeviceCollector(DeviceOptions{Source: source, Timeout: time.Minute}))
	want(t, text, "rdma_devices 1\n", "rdma_read_failures 0\n", `node_infiniband_state_id{device="a0",port="1"} 4`)
	if strings.Contains(text, "b0") {
		t.Error(text)
	}
}

// TestInterfaces has a series for each network interface of a port, which is named once.
func TestInterfaces(t *testing.T) {
	text := gather(t, NewDeviceCollector(DeviceOptions{Source: sysfs(t, map[string]string{
		"a0/ports/1/state": "4: ACTIVE", "a0/ports/1/gid_attrs/ndevs/0": "eth0\n",
		"a0/ports/1/gid_attrs/ndevs/1": "eth0\n", "a0/ports/1/gid_attrs/ndevs/2": "vlan7\n",
	}), Timeout: time.Minute}))
	want(t, text, `rdma_port_netdev_info{device="a0",netdev="eth0",port="1"} 1`, `rdma_port_netdev_info{device="a0",netdev="vlan7",port="1"} 1`, "rdma_read_failures 0\n")
}

// TestFileNeverReturns: a device whose reader is kept is missing, and is not read again; others
// are not delayed after the first scrape, nor hidden.
func TestFileNeverReturns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		release := make(chan struct{})
		started := map[string]int{}
		var mu sync.Mutex
		c := NewDeviceCollector(DeviceOptions{}).(*devices)
		c.machine = func() (*readings, []string) {
			r := &readings{}
			r.add("rdma_devices", gauge, "Devices.", 2)
			names := []string{"good0", "stuck0"}
			for i := range 20 { // each could be the one that is not looked at
				names = append(names, fmt.Sprintf("z%d", i))
			}
			return r, names
		}
		c.device = func(name string) *readings {
			mu.Lock()
			started[name]++
			mu.Unlock()
			if name == "stuck0" {
				<-release
			}
			r := &readings{}
			r.add("rdma_device_info", gauge, "A device.", 1, "device", name)
			return r
		}
		begin := time.Now()
		var scrapes sync.WaitGroup
		for range 3 {
			scrapes.Go(func() {
				text := gather(t, c)
				if n := len(regexp.MustCompile(`rdma_scrape_device_success{device="z\d+"} 1\n`).FindAllString(text, -1)); n != 20 {
					t.Errorf("%d of 20 devices behind one that is stuck", n)
				}
				want(t, text, "rdma_devices 2\n", `rdma_device_info{device="good0"} 1`, "rdma_read_failures 1\n",
					`rdma_scrape_device_success{device="good0"} 1`, `rdma_scrape_device_success{device="stuck0"} 0`,
					`rdma_scrape_device_duration_seconds{device="stuck0"} 8`)
			})
		}
		scrapes.Wait()
		if took := time.Since(begin); took != 8*time.Second {
			t.Errorf("the first scrapes took %v", took)
		}
		gather(t, c)
		if took := time.Since(begin); took != 8*time.Second || started["stuck0"] != 1 {
			t.Errorf("a later scrape waited, or read again: %v, %v", took, started)
		}
		close(release)
		synctest.Wait()
		want(t, gather(t, c), `rdma_device_info{device="stuck0"} 1`, `rdma_scrape_device_success{device="stuck0"} 1`, "rdma_read_failures 0\n")

		stuck := make(chan struct{})
		c.machine = func() (*readings, []string) { <-stuck; return &readings{}, nil }
		if text := gather(t, c); !strings.HasSuffix(text, "\nrdma_read_failures 1\n") || strings.Contains(text, "device") {
			t.Errorf("no device can be listed:\n%s", text)
		}
		close(stuck)
	})
}

// TestDevicesChange: devices that come and go while they are read are no failures.
func TestDevicesChange(t *testing.T) {
	const port = "/ports/1/state"
	source := sysfs(t, map[string]string{"stays0" + port: "4: ACTIVE"})
	c := NewDeviceCollector(DeviceOptions{Source: source, Timeout: time.Minute})
	change := make(chan struct{})
	defer func() { <-change }()
	done := make(chan struct{})
	defer close(done)
	go func() {
		defer close(change)
		dir := filepath.Join(source.Sys, "class/infiniband/goes0")
		for {
			select {
			case <-done:
				return
			default:
			}
			// As in sysfs, a device appears and disappears as a whole.
			if err := os.Symlink("stays0", dir); err != nil {
				t.Error(err)
			}
			if err := os.Remove(dir); err != nil {
				t.Error(err)
			}
		}
	}()
	for range 200 {
		text := gather(t, c)
		want(t, text, `node_infiniband_state_id{device="stays0",port="1"} 4`)
		if !strings.Contains(text, "rdma_devices 1\n") && !strings.Contains(text, "rdma_devices 2\n") || t.Failed() {
			t.Fatal(text)
		}
	}
}
