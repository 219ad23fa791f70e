// Package conns shows the RDMA connections of a program to whoever asks why one does not move, as ss(8)
// does those of TCP: their addresses, devices and queue pairs, and what each waits for since when.
//
//	http.Handle("/debug/rdma", conns.Handler())
//
// The command "verbs conns URL" prints them beside the kernel's state of each queue pair. Like
// net/http/pprof, the handler is for operators: it names all peers, so serve it where only they can
// reach it.
package conns

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/goverbs/verbs/cm"
)

// Source has connections: a [cm.Transport], a [cm.Listener], a Listener or Dialer of packages rsock,
// rmsg and rconn, or a Server or Client of package s3rdma.
type Source interface {
	Conns() []cm.ConnInfo
}

// List returns the connections of all sources, or without one those of [cm.DefaultTransport]: first
// those that wait for the longest time, then those that wait only for what the peer's program sends.
func List(sources ...Source) []cm.ConnInfo {
	if len(sources) == 0 {
		sources = []Source{cm.DefaultTransport()}
	}
	all := []cm.ConnInfo{}
	for _, s := range sources {
		all = append(all, s.Conns()...)
	}
	slices.SortStableFunc(all, func(a, b cm.ConnInfo) int {
		return cmp.Or(oldest(a, false).Compare(oldest(b, false)), oldest(a, true).Compare(oldest(b, true)), cmp.Compare(a.Device, b.Device), cmp.Compare(a.QPNum, b.QPNum))
	})
	return all
}

// oldest returns when the oldest wait of a kind began, or a time after all of them.
func oldest(i cm.ConnInfo, idle bool) time.Time {
	t := time.Unix(1<<40, 0)
	for _, w := range i.Waits {
		if w.Idle == idle && !w.Since.IsZero() && w.Since.Before(t) {
			t = w.Since
		}
	}
	return t
}

// Handler returns a handler that lists the connections as [List] does, as text for people or, with
// the query format=json, as an array of [cm.ConnInfo] in JSON.
func Handler(sources ...Source) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		all := List(sources...)
		w.Header().Set(MachineHeader, Machine())
		if r.FormValue("format") == "json" {
			w.Header().Set("Content-Type", "application/json")
			json.NewEncoder(w).Encode(all)
			return
		}
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		write(w, all, time.Now())
	})
}

// MachineHeader is the header of an answer that has the [Machine] of the program. An address cannot tell:
// a forwarded port has one of this machine.
const MachineHeader = "Boot-Id"

// Machine returns the ID of the running kernel (random(4), boot_id), which containers share, or "" on
// other systems.
func Machine() string {
	id, _ := os.ReadFile("/proc/sys/kernel/random/boot_id")
	return strings.TrimSpace(string(id))
}

// write writes connections for people.
func write(w io.Writer, all []cm.ConnInfo, now time.Time) {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "LAYER\tDEVICE\tQP\tLOCAL\tREMOTE\tAGE\tSTATE\tWAITS FOR")
	for _, i := range all {
		fmt.Fprintf(t, "%s\t%s\t%d\t%s\t%s\t%s\t%s\t%s\n", i.Layer, i.Device, i.QPNum, i.Local, i.Remote, Ago(i.Since, now), i.State, Waits(i, now))
	}
	t.Flush()
}

// Ago returns the time from since to now in words, or "-" for the zero time.
func Ago(since, now time.Time) string {
	if since.IsZero() {
		return "-"
	}
	d := now.Sub(since)
	switch {
	case d < time.Second:
		return d.Round(time.Millisecond).String()
	case d < time.Hour:
		return d.Round(time.Second / 10).String()
	}
	return d.Round(time.Second).String()
}

// Waits returns what a connection waits for, in words.
func Waits(i cm.ConnInfo, now time.Time) string {
	var all []string
	for _, w := range i.Waits {
		text := w.For
		if !w.Since.IsZero() {
			text += " (" + Ago(w.Since, now) + ")"
		}
		all = append(all, text)
	}
	return cmp.Or(strings.Join(all, "; "), "-")
}
