//go:build linux

package exporter_test

import (
	"fmt"
	"io"
	"log"
	"net/http"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/goverbs/verbs/exporter"
	"github.com/goverbs/verbs/rsock"
)

// A server that answers HTTP over RDMA has a registry, with its listener and its dialer.
func ExampleNewCollector() {
	l, err := rsock.Listen("rdma", "10.9.0.1:7471")
	if err != nil {
		log.Fatal(err)
	}
	var dialer rsock.Dialer
	reg := prometheus.NewRegistry()
	reg.MustRegister(
		exporter.NewCollector("api", l.(*rsock.Listener)),
		exporter.NewCollector("api", &dialer),
	)
	server := http.Server{Handler: promhttp.HandlerFor(reg, promhttp.HandlerOpts{})}
	go server.Serve(l)
	defer server.Close()

	client := http.Client{Transport: &http.Transport{DialContext: dialer.DialContext}}
	response, err := client.Get("http://" + l.Addr().String() + "/metrics")
	if err != nil {
		log.Fatal(err)
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err != nil {
		log.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		if strings.HasPrefix(line, "verbs_rsock_open_connections") {
			fmt.Print(line)
		}
	}
}
