package rdmadev

import (
	"bufio"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	"golang.org/x/sys/unix"
	"golang.org/x/tools/txtar"

	"github.com/goverbs/verbs/internal/labtest"
)

// verbsCommand returns the path of verbs, which it builds once. The lab has it already.
func verbsCommand(t *testing.T) string {
	t.Helper()
	if os.Getenv("VERBS_LAB") != "" {
		return labtest.Built(t, "verbs")
	}
	path := filepath.Join(buildDir, "verbs")
	if _, err := os.Stat(path); err == nil {
		return path
	}
	if out, err := exec.Command("go", "build", "-o", path, "github.com/goverbs/verbs/cmd/verbs").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return path
}

var buildDir string

func TestMain(m *testing.M) {
	var err error
	if buildDir, err = os.MkdirTemp("", "verbs"); err != nil {
		panic(err)
	}
	status := m.Run()
	os.RemoveAll(buildDir)
	os.Exit(status)
}

// startExporter starts verbs exporter and returns its address.
func startExporter(t *testing.T, args ...string) string {
	t.Helper()
	cmd := exec.Command(verbsCommand(t), append([]string{"exporter", "--listen", "127.0.0.1:0"}, args...)...)
	cmd.Stderr = os.Stderr
	stdout := labtest.Must(cmd.StdoutPipe())(t)
	labtest.Check(t, cmd.Start())
	t.Cleanup(func() {
		cmd.Process.Signal(unix.SIGTERM)
		if err := cmd.Wait(); err != nil {
			t.Errorf("verbs exporter: %v", err)
		}
	})
	line, err := bufio.NewReader(stdout).ReadString('\n')
	addr, ok := strings.CutPrefix(strings.TrimSpace(line), "listening on ")
	if !ok {
		t.Fatalf("%q, %v", line, err)
	}
	return addr
}

// scrape returns the metrics by name.
func scrape(t *testing.T, addr string) map[string]*dto.MetricFamily {
	t.Helper()
	resp := labtest.Must(http.Get("http://" + addr + "/metrics"))(t)
	defer resp.Body.Close()
	parser := expfmt.NewTextParser(model.LegacyValidation)
	return labtest.Must(parser.TextToMetricFamilies(resp.Body))(t)
}

// value returns a metric's value for labels, "device=mlx5_0".
func value(families map[string]*dto.MetricFamily, name string, labels ...string) (float64, bool) {
	for _, m := range families[name].GetMetric() {
		found := 0
		for _, l := range m.Label {
			if slices.Contains(labels, l.GetName()+"="+l.GetValue()) {
				found++
			}
		}
		if found == len(labels) {
			return m.GetGauge().GetValue() + m.GetCounter().GetValue(), true
		}
	}
	return 0, false
}

// TestExporter scrapes all fixtures: the text is valid, and the metrics of node_exporter have
// its names.
func TestExporter(t *testing.T) {
	for _, file := range labtest.Must(filepath.Glob("testdata/*.txtar"))(t) {
		root := t.TempDir()
		for _, f := range labtest.Must(txtar.ParseFile(file))(t).Files {
			extract(t, root, f)
		}
		name := strings.TrimSuffix(filepath.Base(file), ".txtar")
		families := scrape(t, startExporter(t, "--sys", filepath.Join(root, "sys")))
		if len(families["node_infiniband_state_id"].GetMetric()) == 0 {
			t.Errorf("%s: no port has a state", name)
		}
		if name != "mlx5-ib-ndr" {
			continue
		}
		for want, labels := range map[string][]string{
			"node_infiniband_state_id 4":                  {"device=mlx5_0", "port=1"},
			"node_infiniband_rate_bytes_per_second 5e+10": {"device=mlx5_0", "port=1"},
			"node_infiniband_link_downed_total 255":       {"device=mlx5_1", "port=1"},
			"rdma_device_info 1":                          {"device=mlx5_0", "driver=mlx5_core", "protocol=ib"},
			"rdma_read_failures 0":                        nil,
		} {
			metric, _, _ := strings.Cut(want, " ")
			if v, ok := value(families, metric, labels...); !ok || fmt.Sprintf("%s %v", metric, v) != want {
				t.Errorf("%s%v: %v, %v, want %s", metric, labels, v, ok, want)
			}
		}
	}
}

// TestExporterFilter scrapes some devices only.
func TestExporterFilter(t *testing.T) {
	root := t.TempDir()
	for _, f := range labtest.Must(txtar.ParseFile("testdata/mlx5-ib-ndr.txtar"))(t).Files {
		extract(t, root, f)
	}
	families := scrape(t, startExporter(t, "--sys", filepath.Join(root, "sys"), "--include", "mlx5_.", "--exclude", "mlx5_[12]"))
	if n := len(families["node_infiniband_info"].GetMetric()); n != 1 {
		t.Errorf("%d devices are left", n)
	}
}

// TestExporterTime scrapes 16 devices, which must take less than 50 ms.
func TestExporterTime(t *testing.T) {
	root := t.TempDir()
	archive := labtest.Must(txtar.ParseFile("testdata/mlx5-ib-ndr.txtar"))(t)
	for i := range 16 {
		for _, f := range archive.Files {
			if strings.Contains(f.Name, "class/infiniband/mlx5_0") {
				f.Name = strings.Replace(f.Name, "mlx5_0", fmt.Sprintf("mlx5_%d", i), 1)
				extract(t, root, f)
			}
		}
	}
	addr := startExporter(t, "--sys", filepath.Join(root, "sys"))
	best := time.Hour
	for range 20 {
		start := time.Now()
		if n := len(scrape(t, addr)["node_infiniband_info"].GetMetric()); n != 16 {
			t.Fatalf("%d devices", n)
		}
		best = min(best, time.Since(start))
	}
	t.Logf("a scrape takes %v", best)
	if best > 50*time.Millisecond && os.Getenv("VERBS_LAB") == "" { // the lab's processor is emulated
		t.Errorf("a scrape takes %v", best)
	}
}
