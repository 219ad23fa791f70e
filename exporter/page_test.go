//go:build linux

package exporter

import (
	"fmt"
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/goverbs/verbs/cm"
	"github.com/goverbs/verbs/internal/labtest"
	"github.com/goverbs/verbs/rconn"
	"github.com/goverbs/verbs/rmsg"
	"github.com/goverbs/verbs/rsock"
	"github.com/goverbs/verbs/s3rdma"
	"github.com/goverbs/verbs/s3rdma/hipobj"
)

// every returns a collector of each kind of source.
func every(t *testing.T) []prometheus.Collector {
	t.Helper()
	at := labtest.AddrOf(labtest.RXE) + ":0"
	loop := labtest.Made(rmsg.NewLoop(rmsg.Options{}))(t)
	ctx := labtest.OpenDevice(t, labtest.RXE)
	server := labtest.Made(s3rdma.NewServer(s3rdma.ServerOptions{Device: ctx}))(t)
	client := labtest.Made(s3rdma.NewClient(s3rdma.ClientOptions{Device: ctx.Device().Name}))(t)
	return []prometheus.Collector{
		NewCollector("a", labtest.Made(rsock.Listen("rdma", at))(t).(*rsock.Listener)), NewCollector("a", new(rsock.Dialer)),
		NewCollector("a", labtest.Made((&rmsg.ListenConfig{Loop: loop}).Listen(t.Context(), at))(t)), NewCollector("a", new(rmsg.Dialer)), NewCollector("a", loop),
		NewCollector("a", labtest.Made(rconn.Listen(t.Context(), at))(t)), NewCollector("a", new(rconn.Dialer)),
		NewCollector("a", labtest.Made(cm.Listen(t.Context(), at))(t)), NewCollector("a", cm.DefaultTransport()),
		NewCollector("a", server), NewCollector("a", client), NewCollector("a", labtest.Made(hipobj.NewServer(ctx, hipobj.Options{}))(t)),
		NewCollector("b", new(rsock.Dialer)), // several in one registry
	}
}

var (
	series = regexp.MustCompile(`(?m)^(\w+)(?:\{(.*)\})? `)
	label  = regexp.MustCompile(`(\w+)="`)
	help   = regexp.MustCompile(`(?m)^# HELP (\w+) (.*)$`)
)

// TestPage tests that docs/prometheus.md has a row for each metric, with its labels and its
// description, and for no other.
func TestPage(t *testing.T) {
	labtest.Require(t)
	page := string(labtest.Must(os.ReadFile("../docs/prometheus.md"))(t))
	text := gather(t, append(every(t), NewDeviceCollector(DeviceOptions{}))...)
	helps := map[string]string{}
	for _, m := range help.FindAllStringSubmatch(text, -1) {
		helps[m[1]] = m[2]
	}
	rows := map[string]string{}
	for _, m := range series.FindAllStringSubmatch(text, -1) {
		var labels []string
		for _, l := range label.FindAllStringSubmatch(m[2], -1) {
			labels = append(labels, "`"+l[1]+"`")
		}
		rows[m[1]] = fmt.Sprintf("| `%s` | %s | %s |\n", m[1], strings.Join(labels, ", "), helps[m[1]])
	}
	for _, name := range slices.Sorted(maps.Keys(rows)) {
		if !strings.HasPrefix(name, "rdma_hw_") && !strings.HasPrefix(name, "node_") && !strings.Contains(page, rows[name]) {
			t.Errorf("a row is missing:\n%s", rows[name])
		}
	}
	for _, m := range regexp.MustCompile("(?m)^\\| `(verbs_\\w+)`").FindAllStringSubmatch(page, -1) {
		if rows[m[1]] == "" {
			t.Errorf("there is no %s", m[1])
		}
	}
}
