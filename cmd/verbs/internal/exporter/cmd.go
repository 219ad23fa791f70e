// Package exporter is verbs exporter: the state, counters and resources of RDMA devices for
// Prometheus.
package exporter

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"os"
	"regexp"
	"time"

	"github.com/goverbs/verbs/rdmadev"
)

// Cmd is verbs exporter, for kong.
type Cmd struct {
	Listen    string         `default:":9879" help:"Address of the HTTP server."`
	Once      bool           `help:"Print the metrics and exit."`
	Processes bool           `help:"Also export QPs and MRs by process."`
	Include   *regexp.Regexp `placeholder:"REGEXP" help:"Only devices whose whole names match."`
	Exclude   *regexp.Regexp `placeholder:"REGEXP" help:"No devices whose whole names match; nothing of them is read."`
	Sys       string         `placeholder:"DIR" help:"Where the host's sysfs is mounted. Resources are exported only without it."`
}

func (c *Cmd) Help() string {
	return `Serves metrics of the RDMA devices of every driver at /metrics. It needs no device node and no
privilege, and, in a container, only the host's network namespace.

Metrics that node_exporter's infiniband collector has too have the same names:
node_infiniband_*. Others begin with rdma_. A device, file or counter that cannot be read is
left out, does not hide others, and is counted in rdma_read_failures.

Examples:

  verbs exporter
  verbs exporter --once --exclude 'mlx5_1[2-5]'
  verbs exporter --listen 127.0.0.1:9879 --processes`
}

func (c *Cmd) Run(ctx context.Context) error {
	if c.Once {
		return c.collect().write(os.Stdout)
	}
	l, err := net.Listen("tcp", c.Listen)
	if err != nil {
		return err
	}
	fmt.Println("listening on", l.Addr())
	server := http.Server{Handler: c.handler(), ReadHeaderTimeout: 10 * time.Second}
	ended := make(chan struct{})
	context.AfterFunc(ctx, func() {
		limit, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
		defer cancel()
		server.Shutdown(limit)
		close(ended)
	})
	if err := server.Serve(l); err != http.ErrServerClosed {
		return err
	}
	<-ended
	return nil
}

func (c *Cmd) handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /metrics", func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
		c.collect().write(w)
	})
	mux.HandleFunc("GET /{$}", func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprintln(w, "RDMA devices for Prometheus: see /metrics")
	})
	return mux
}

// source returns the devices that the options select.
func (c *Cmd) source() rdmadev.Source {
	include, exclude := whole(c.Include), whole(c.Exclude)
	return rdmadev.Source{Sys: c.Sys, Filter: func(name string) bool {
		return (include == nil || include.MatchString(name)) && (exclude == nil || !exclude.MatchString(name))
	}}
}

// whole returns an expression that matches what re matches as a whole, or nil for nil.
func whole(re *regexp.Regexp) *regexp.Regexp {
	if re == nil {
		return nil
	}
	return regexp.MustCompile("^(?:" + re.String() + ")$")
}
