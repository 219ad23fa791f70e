// Command verbs-exporter serves the states, counters and resources of the RDMA devices of every
// driver for Prometheus. It needs no device node and no privilege, and, in a container, only the
// host's network namespace.
package main

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"os"
	"os/signal"
	"regexp"
	"syscall"
	"time"

	"github.com/alecthomas/kingpin/v2"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	versioncollector "github.com/prometheus/client_golang/prometheus/collectors/version"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/promslog"
	logflag "github.com/prometheus/common/promslog/flag"
	"github.com/prometheus/common/version"
	"github.com/prometheus/exporter-toolkit/web"
	webflag "github.com/prometheus/exporter-toolkit/web/kingpinflag"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/exporter"
	"github.com/goverbs/verbs/rdmadev"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Args[1:], os.Stdout, os.Stderr); err != nil {
		slog.Error("verbs-exporter failed", "err", err)
		os.Exit(1)
	}
}

// run serves metrics until ctx ends, or prints them.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	version.Version = verbs.Version
	app := kingpin.New("verbs-exporter", "Serves the states, counters and resources of RDMA devices for Prometheus.")
	app.Version(version.Print(app.Name)).UsageWriter(stdout)
	app.HelpFlag.Short('h')
	once := app.Flag("once", "Print the metrics and exit.").Bool()
	processes := app.Flag("processes", "Also export QPs and MRs by process, and the states of QPs.").Bool()
	include := app.Flag("device.include", "Only devices whose whole names match this expression.").PlaceHolder("REGEXP").Regexp()
	exclude := app.Flag("device.exclude", "Skip devices whose whole names match, without reading them.").PlaceHolder("REGEXP").Regexp()
	sys := app.Flag("path.sysfs", "Mount point of the host's sysfs, if not /sys. Without resources.").PlaceHolder("DIR").String()
	webFlags := webflag.AddFlags(app, ":9879")
	logConfig := promslog.Config{Writer: stderr}
	logflag.AddFlags(app, &logConfig)
	if _, err := app.Parse(args); err != nil {
		return err
	}
	log := promslog.New(&logConfig)

	only, not := whole(*include), whole(*exclude)
	reg := prometheus.NewRegistry()
	reg.MustRegister(
		versioncollector.NewCollector("rdma"),
		exporter.NewDeviceCollector(exporter.DeviceOptions{
			Processes: *processes,
			Logger:    log,
			Source: rdmadev.Source{Sys: *sys, Filter: func(name string) bool {
				return (only == nil || only(name)) && (not == nil || !not(name))
			}},
		}),
	)
	if *once {
		return print(reg, stdout)
	}
	reg.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return serve(ctx, reg, webFlags, log)
}

// print prints the metrics, as for node_exporter's collector of text files.
func print(g prometheus.Gatherer, w io.Writer) error {
	families, err := g.Gather()
	for _, f := range families {
		if _, werr := expfmt.MetricFamilyToText(w, f); werr != nil {
			return werr
		}
	}
	return err
}

// serve serves the metrics until ctx ends.
func serve(ctx context.Context, reg *prometheus.Registry, flags *web.FlagConfig, log *slog.Logger) error {
	landing, err := web.NewLandingPage(web.LandingConfig{
		Name: "verbs-exporter", Description: "RDMA devices for Prometheus", Version: version.Info(), Profiling: "false",
		Links: []web.LandingLinks{{Address: "/metrics", Text: "Metrics"}},
	})
	if err != nil {
		return err
	}
	errorLog := slog.NewLogLogger(log.Handler(), slog.LevelWarn)
	mux := http.NewServeMux()
	mux.Handle("/", landing)
	mux.Handle("/metrics", promhttp.HandlerFor(reg, promhttp.HandlerOpts{
		ErrorLog: errorLog, ErrorHandling: promhttp.ContinueOnError,
		Registry: reg, MaxRequestsInFlight: 40, // as node_exporter
	}))
	server := &http.Server{Handler: mux, ErrorLog: errorLog, ReadHeaderTimeout: 10 * time.Second, WriteTimeout: 30 * time.Second}
	ended := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(ended)
		limit, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
		defer cancel()
		server.Shutdown(limit)
	})
	if err := web.ListenAndServe(server, flags, log); !errors.Is(err, http.ErrServerClosed) || stop() {
		return err
	}
	<-ended
	return nil
}

// whole returns a function that reports whether re matches a name as a whole, or nil for nil.
func whole(re *regexp.Regexp) func(name string) bool {
	if re == nil {
		return nil
	}
	re.Longest()
	return func(name string) bool { return len(re.FindString(name)) == len(name) && name != "" }
}
