package main

import (
	"fmt"
	"io"
	"slices"
	"sync"
	"text/tabwriter"
	"time"
)

// sample has the delays of an answered probe: network RTT, responder's, prober's.
type sample [3]int64

// window counts the probes of a time window.
type window struct {
	answered, lost int
	last           [1024]sample // for the figures
}

// probeStats has the probes from one of this agent's endpoints to one of a peer's. It outlives
// both: devices fail, peers restart.
type probeStats struct {
	local, peer, remote string
	named               time.Time // by the peer, last; under the agent's lock

	mu    sync.Mutex
	paths []window
	err   error // why the peer's address cannot be resolved
}

func (p *probeStats) answer(path uint8, s sample) {
	p.mu.Lock()
	defer p.mu.Unlock()
	w := &p.paths[path]
	w.last[w.answered%len(w.last)] = s
	w.answered++
}

func (p *probeStats) lose(path uint8) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.paths[path].lost++
}

func (p *probeStats) failed(err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.err = err
}

// figures describe a delay.
type figures struct {
	Min    time.Duration `json:"min_ns"`
	Median time.Duration `json:"median_ns"`
	P99    time.Duration `json:"p99_ns"`
}

// row has the figures of a window for two endpoints and a path.
type row struct {
	Local     string  `json:"local"`
	Peer      string  `json:"peer"`
	Remote    string  `json:"remote"`
	Path      int     `json:"path"`
	Answered  int     `json:"answered"`
	Lost      int     `json:"lost"`
	RTT       figures `json:"rtt"`
	Responder figures `json:"responder"` // delay
	Prober    figures `json:"prober"`
	Error     string  `json:"error,omitempty"`
}

// rows ends the window, and returns its rows.
func (p *probeStats) rows() (rows []row) {
	for path := range p.paths {
		p.mu.Lock()
		w, err := p.paths[path], p.err
		p.paths[path] = window{}
		p.mu.Unlock()
		r := row{Local: p.local, Peer: p.peer, Remote: p.remote, Path: path, Answered: w.answered, Lost: w.lost}
		if err != nil {
			r.Error = err.Error()
		}
		n := min(w.answered, len(w.last))
		for i, f := range []*figures{&r.RTT, &r.Responder, &r.Prober} {
			d := make([]time.Duration, n)
			for j, s := range w.last[:n] {
				d[j] = time.Duration(s[i])
			}
			if slices.Sort(d); n > 0 {
				*f = figures{d[0], d[n/2], d[n*99/100]}
			}
		}
		if w.answered+w.lost > 0 || err != nil {
			rows = append(rows, r)
		}
	}
	return rows
}

// report shows the last window that has ended, and the current state of the endpoints.
type report struct {
	Window    time.Duration     `json:"window_ns"`
	Endpoints []state           `json:"endpoints"`
	Peers     map[string]string `json:"peers"` // "", or why it is not probed
	Pairs     []row             `json:"pairs"`
}

type state struct {
	Name    string `json:"name"`
	Error   string `json:"error,omitempty"`
	Unknown uint64 `json:"unknown"` // datagrams that were dropped, see endpoint
	Bad     uint64 `json:"bad"`
	Stale   uint64 `json:"stale"`
	Busy    uint64 `json:"busy"`
}

func (r *report) table(w io.Writer) {
	for _, e := range r.Endpoints {
		fmt.Fprintf(w, "%s: dropped %d of unknown senders, %d bad, %d late, %d without room  %s\n", e.Name, e.Unknown, e.Bad, e.Stale, e.Busy, e.Error)
	}
	for peer, err := range r.Peers {
		if err != "" {
			fmt.Fprintf(w, "%s: %s\n", peer, err)
		}
	}
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(t, "local\tpeer\tremote\tpath\tanswered\tlost\tRTT min\tmedian\tp99\tresponder p99\tprober p99\t")
	for _, p := range r.Pairs {
		fmt.Fprintf(t, "%s\t%s\t%s\t%d\t%d\t%d\t%v\t%v\t%v\t%v\t%v\t%s\n", p.Local, p.Peer, p.Remote, p.Path, p.Answered, p.Lost,
			p.RTT.Min, p.RTT.Median, p.RTT.P99, p.Responder.P99, p.Prober.P99, p.Error)
	}
	t.Flush()
}
