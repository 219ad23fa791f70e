package dev

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/goverbs/verbs/cm"
	"github.com/goverbs/verbs/cm/conns"
	"github.com/goverbs/verbs/cmd/verbs/internal/cli"
)

// Conns is verbs conns, for kong.
type Conns struct {
	URL   string `arg:"" help:"Where the program serves package cm/conns, as http://127.0.0.1:6060/debug/rdma."`
	Stats bool   `help:"Print each connection's statistics that are not 0."`
	JSON  bool   `help:"Print JSON."`
}

func (c *Conns) Help() string {
	return `Shows the connections of a program that serves the handler of package cm/conns, those
that wait for the longest time first. KERNEL is the state of the queue pair in the
kernel, if the program runs on this machine.

Examples:

  verbs conns http://127.0.0.1:6060/debug/rdma
  verbs conns http://127.0.0.1:6060/debug/rdma --stats`
}

func (c *Conns) Run(ctx context.Context) error { return c.print(ctx, os.Stdout) }

const (
	connsTimeout = 30 * time.Second
	maxConns     = 64 << 20 // bytes of an answer: some 100,000 connections
)

func (c *Conns) print(ctx context.Context, w io.Writer) error {
	u, err := url.Parse(c.URL)
	if err != nil || u.Host == "" {
		return cli.Usage(fmt.Errorf("%q is no URL: want http://HOST:PORT/PATH", c.URL))
	}
	q := u.Query()
	q.Set("format", "json")
	u.RawQuery = q.Encode()
	ctx, cancel := context.WithTimeout(ctx, connsTimeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, u.String(), nil)
	if err != nil {
		return cli.Usage(err)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("get %s: %s", c.URL, resp.Status)
	}
	text, err := io.ReadAll(io.LimitReader(resp.Body, maxConns+1))
	if err != nil {
		return fmt.Errorf("get %s: %w", c.URL, err)
	}
	var all []cm.ConnInfo
	if len(text) > maxConns {
		return fmt.Errorf("get %s: more than %d bytes", c.URL, maxConns)
	}
	if err := json.Unmarshal(text, &all); err != nil {
		return fmt.Errorf("get %s: the answer is no list of connections, does package cm/conns serve there? %w", c.URL, err)
	}
	var kernel map[string]string
	if onThisMachine(resp.Header) {
		kernel = states()
	}
	return c.list(w, all, kernel, time.Now())
}

// list prints connections with the states of queue pairs in the kernel.
func (c *Conns) list(w io.Writer, all []cm.ConnInfo, kernel map[string]string, now time.Time) error {
	if c.JSON {
		return cli.WriteJSON(w, append([]cm.ConnInfo{}, all...))
	}
	header := []string{"LAYER", "DEVICE", "QP", "KERNEL", "LOCAL", "REMOTE", "AGE", "STATE", "WAITS FOR"}
	if c.Stats {
		header = append(header, "STATS")
	}
	t := cli.NewTable(w, header...)
	for _, i := range all {
		row := []any{i.Layer, i.Device, i.QPNum, kernel[key(i.Device, i.QPNum)], i.Local, i.Remote, conns.Ago(i.Since, now), i.State, conns.Waits(i, now)}
		if c.Stats {
			row = append(row, counters("", i.Stats))
		}
		t.Row(row...)
	}
	return t.Flush()
}

func key(device string, qp uint32) string { return fmt.Sprintf("%s %d", device, qp) }

// onThisMachine reports whether an answer comes from a program on this machine.
func onThisMachine(h http.Header) bool {
	m := conns.Machine()
	return m != "" && h.Get(conns.MachineHeader) == m
}

// states returns the states of all queue pairs that can be seen from here. Devices of another
// process in user space cannot.
func states() map[string]string {
	all := map[string]string{}
	devs, _ := source.Devices()
	for _, d := range devs {
		qps, _ := d.QPs()
		for _, q := range qps {
			all[key(d.Name, q.Num)] = q.State.String()
		}
	}
	return all
}

// counters returns the fields of a layer's statistics that are not 0, as JSON has them.
func counters(name string, stats any) string {
	switch v := stats.(type) {
	case float64:
		if v != 0 {
			return name + "=" + strconv.FormatFloat(v, 'f', -1, 64) + " "
		}
	case map[string]any:
		var all strings.Builder
		for _, field := range slices.Sorted(maps.Keys(v)) {
			all.WriteString(counters(strings.TrimPrefix(name+"."+field, "."), v[field]))
		}
		return all.String()
	}
	return ""
}
