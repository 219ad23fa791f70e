//go:build linux

package exporter

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/goverbs/verbs/internal/labtest"
	"github.com/goverbs/verbs/internal/labtest/tool"
)

// rxeCounters are those of rxe (drivers/infiniband/sw/rxe/rxe_hw_counters.c of Linux 7.3).
const rxeCounters = "sent_pkts rcvd_pkts duplicate_request out_of_seq_request rcvd_rnr_err send_rnr_err rcvd_seq_err ack_deferred retry_exceeded_err " +
	"retry_rnr_exceeded_err completer_retry_err send_err link_downed rdma_sends rdma_recvs sent_bytes rcvd_bytes"

// softCounters are those that package soft has beside them.
const softCounters = "rx_drops listen_drops"

var (
	rowOfPage  = regexp.MustCompile("(?m)^\\| `((?:verbs|rdma)_[a-z0-9_]+)`")
	metricUsed = regexp.MustCompile(`\b(?:node_infiniband|rdma|verbs)_[a-z0-9_]+\b`)
	variable   = regexp.MustCompile(`\$(\w+)`)
)

// exported returns the names of all metrics: those of a machine with each counter that has a name
// here, or is rxe's or soft's, and those that TestPage finds on the page.
func exported(t *testing.T) map[string]bool {
	t.Helper()
	files := map[string]string{"x0/ports/1/state": "4: ACTIVE"}
	for c := range names {
		files["x0/ports/1/counters/"+c] = "1"
	}
	for c := range hwNames {
		files["x0/ports/1/hw_counters/"+c] = "1"
	}
	for c := range strings.FieldsSeq(rxeCounters + " " + softCounters) {
		files["x0/ports/1/hw_counters/"+c] = "1"
	}
	text := gather(t, NewDeviceCollector(DeviceOptions{Source: sysfs(t, files), Timeout: time.Minute}))
	page := string(labtest.Must(os.ReadFile("../docs/prometheus.md"))(t))
	all := map[string]bool{}
	for _, m := range append(help.FindAllStringSubmatch(text, -1), rowOfPage.FindAllStringSubmatch(page, -1)...) {
		all[m[1]] = true
	}
	return all
}

// panel is one of a dashboard.
type panel struct {
	ID      int
	Type    string
	Title   string
	GridPos struct{ H, W, X, Y int }
	Targets []struct{ RefID, Expr string }
}

// TestDashboard tests that the panels do not overlap, and that their queries use variables and
// metrics that exist and are PromQL.
func TestDashboard(t *testing.T) {
	var d struct {
		Panels     []panel
		Templating struct {
			List []struct{ Name, Definition string }
		}
	}
	labtest.Check(t, json.Unmarshal(labtest.Must(os.ReadFile("grafana/rdma.json"))(t), &d))
	metrics := exported(t)
	variables := map[string]bool{"__rate_interval": true}
	queries := map[string]string{}
	for _, v := range d.Templating.List {
		variables[v.Name], queries[v.Name] = true, v.Definition
	}
	ids, cells := map[int]bool{}, map[[2]int]string{}
	var rules []map[string]string
	for _, p := range d.Panels {
		if ids[p.ID] || p.Type != "row" && len(p.Targets) == 0 {
			t.Errorf("%s: its id is that of another, or it has no query", p.Title)
		}
		ids[p.ID] = true
		for x := range p.GridPos.W {
			for y := range p.GridPos.H {
				cell := [2]int{p.GridPos.X + x, p.GridPos.Y + y}
				if cells[cell] != "" || cell[0] >= 24 {
					t.Errorf("%s lies on %s or beyond the margin", p.Title, cells[cell])
				}
				cells[cell] = p.Title
			}
		}
		for _, target := range p.Targets {
			queries[p.Title+" "+target.RefID] = target.Expr
			expr := variable.ReplaceAllString(strings.ReplaceAll(target.Expr, "[$__rate_interval]", "[1m]"), "x")
			rules = append(rules, map[string]string{"record": fmt.Sprintf("panel:%d:%s", p.ID, target.RefID), "expr": expr})
		}
	}
	for title, query := range queries {
		for _, v := range variable.FindAllStringSubmatch(query, -1) {
			if !variables[v[1]] {
				t.Errorf("%s: there is no variable %s", title, v[1])
			}
		}
		for _, m := range metricUsed.FindAllString(query, -1) {
			if !metrics[m] && m != "verbs_" {
				t.Errorf("%s: there is no metric %s", title, m)
			}
		}
	}
	file := filepath.Join(t.TempDir(), "dashboard.yml")
	group := map[string]any{"name": "dashboard", "rules": rules}
	labtest.Check(t, os.WriteFile(file, labtest.Must(json.Marshal(map[string]any{"groups": []any{group}}))(t), 0o666)) // JSON is YAML
	promtool(t, "check", "rules", file)
}

// TestAlerts tests that the rules use metrics that exist, and runs their own tests.
func TestAlerts(t *testing.T) {
	metrics := exported(t)
	for _, file := range []string{"alerts.yml", "alerts_test.yml"} {
		for _, m := range metricUsed.FindAllString(string(labtest.Must(os.ReadFile(file))(t)), -1) {
			if !metrics[m] {
				t.Errorf("%s: there is no metric %s", file, m)
			}
		}
	}
	page := string(labtest.Must(os.ReadFile("../docs/prometheus.md"))(t))
	rules := strings.Split(string(labtest.Must(os.ReadFile("alerts.yml"))(t)), "- alert: ")[1:]
	for _, rule := range rules {
		name, _, _ := strings.Cut(rule, "\n")
		_, anchor, ok := strings.Cut(rule, "runbook_url: https://github.com/goverbs/verbs/blob/main/docs/prometheus.md#")
		anchor, _, _ = strings.Cut(anchor, "\n")
		heading := "\n### " + strings.ReplaceAll(anchor, "-", " ") + "\n"
		if !ok || !strings.Contains(strings.ToLower(page), heading) || !strings.Contains(page, "`"+name+"`") {
			t.Errorf("%s: its runbook is no section of docs/prometheus.md", name)
		}
	}
	promtool(t, "check", "rules", "alerts.yml")
	promtool(t, "test", "rules", "alerts_test.yml")
}

// promtool runs Prometheus' program, which make test-host fetches.
func promtool(t *testing.T, args ...string) {
	t.Helper()
	path, err := filepath.Abs("../build/promtool")
	if _, serr := os.Stat(path); err != nil || serr != nil {
		path = tool.Path(t, "promtool")
	}
	if out, err := exec.Command(path, args...).CombinedOutput(); err != nil {
		t.Errorf("promtool %v: %v\n%s", args, err, out)
	}
}
