package main

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/uverbs"
)

const (
	pause   = time.Second // between looks at devices and peers
	maxRate = 50_000
	maxDoc  = 64 << 10 // bytes of a peer's document
	maxList = 64       // endpoints of a peer
	forget  = time.Minute
)

// document tells other agents the endpoints of this one. Knows has the instances whose endpoints
// the agent knows, and their generations: it would drop the probes of others.
type document struct {
	Instance   string         `json:"instance"`
	Generation int            `json:"generation"` // grows with each new endpoint
	Endpoints  []remote       `json:"endpoints"`
	Knows      map[string]int `json:"knows"`
}

type remote struct {
	Name string       `json:"name"`
	Addr verbs.QPAddr `json:"addr"`
	QKey uint32       `json:"qkey"`
}

// check bounds the document of a peer.
func (d *document) check() error {
	if len(d.Endpoints) > maxList || len(d.Instance) > 64 {
		return errors.New("more endpoints than a host has")
	}
	for _, r := range d.Endpoints {
		printable := !slices.ContainsFunc([]byte(r.Name), func(b byte) bool { return b <= ' ' || b > '~' })
		// QPs 0 and 1 are the device's own, and the highest bit of a QKey is the kernel's.
		ip := r.Addr.GID.Addr()
		if !printable || len(r.Name) > 64 || r.Addr.QPNum < 2 || r.QKey>>31 != 0 || ip.IsUnspecified() || ip.IsMulticast() {
			return fmt.Errorf("impossible endpoint %q at %v", r.Name, r.Addr)
		}
	}
	return nil
}

type agent struct {
	o      *options
	client *http.Client
	id     string // of this instance

	mu         sync.Mutex
	endpoints  map[string]*endpoint // by name; also those that are not ready
	errs       map[string]error     // of those that are not open
	generation int
	docs       map[string]*document // by peer
	known      map[string]*document // the documents whose endpoints all of ours know
	peers      map[string]string    // why they cannot be asked, or ""
	stats      []*probeStats
	rows       []row // of the last window
}

func newAgent(o *options, client *http.Client) *agent {
	client.Timeout = pause
	return &agent{o: o, client: client, id: rand.Text(), endpoints: map[string]*endpoint{},
		errs: map[string]error{}, docs: map[string]*document{}, known: map[string]*document{}, peers: map[string]string{}}
}

// run runs until ctx ends, and returns nil then. It fails if at first no device can be used.
func (a *agent) run(ctx context.Context, show func(*report)) error {
	ctx, stop := context.WithCancel(ctx)
	var wg sync.WaitGroup
	defer wg.Wait()
	defer stop()
	if n, err := a.scan(ctx, &wg); n == 0 {
		return cmp.Or(err, error(verbs.ErrNoDevice))
	}
	for _, p := range a.o.peers {
		wg.Go(func() { a.follow(ctx, p) })
	}
	look, window := time.NewTicker(pause), time.NewTicker(a.o.window)
	defer look.Stop()
	defer window.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-look.C:
			a.scan(ctx, &wg)
		case <-window.C:
			a.endWindow()
			show(a.report())
		}
	}
}

// scan opens devices that are not open, and stops endpoints that have failed. It returns the number of
// endpoints, and why devices are not open.
func (a *agent) scan(ctx context.Context, wg *sync.WaitGroup) (int, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	devices, err := uverbs.Devices()
	if err != nil {
		return len(a.endpoints), err
	}
	last := a.errs
	a.errs = map[string]error{}
	for _, name := range a.o.devices {
		a.errs[name] = fmt.Errorf("%s: %w", name, verbs.ErrNoDevice)
	}
	there := map[string]bool{}
	for _, d := range devices {
		if len(a.o.devices) > 0 && !slices.Contains(a.o.devices, d.Name) {
			continue
		}
		there[d.Name] = true
		delete(a.errs, d.Name)
		if e := a.endpoints[d.Name]; e != nil {
			if err := e.check(); err != nil {
				e.stop(err)
			}
		} else if err := last[d.Name]; errors.Is(err, errors.ErrUnsupported) { // iWARP has no datagrams
			a.errs[d.Name] = err
		} else if e, err := openEndpoint(d, a.o); err != nil {
			a.errs[d.Name] = err
		} else {
			a.start(ctx, wg, e)
		}
	}
	// Drivers that wait until programs have closed a device show its removal by its absence only.
	for name, e := range a.endpoints {
		if !there[name] {
			e.stop(verbs.ErrDeviceRemoved)
		}
	}
	return len(a.endpoints), errors.Join(slices.Collect(maps.Values(a.errs))...)
}

// start runs an endpoint. Peers learn of it when it knows all of theirs.
func (a *agent) start(ctx context.Context, wg *sync.WaitGroup, e *endpoint) {
	ctx, e.stop = context.WithCancelCause(ctx)
	a.endpoints[e.name] = e
	docs := maps.Clone(a.docs)
	wg.Go(func() {
		for peer, doc := range docs {
			a.update(e, peer, doc)
		}
		a.mu.Lock()
		a.generation++
		e.generation = a.generation
		a.mu.Unlock()
		err := e.run(ctx)
		a.mu.Lock()
		defer a.mu.Unlock()
		delete(a.endpoints, e.name)
		if err != nil {
			a.errs[e.name] = err
		}
	})
}

// follow asks a peer for its endpoints again and again. Probes of a peer that is gone go on, and
// are lost.
func (a *agent) follow(ctx context.Context, peer string) {
	for ctx.Err() == nil {
		doc, err := a.fetch(ctx, peer)
		a.mu.Lock()
		if a.peers[peer] = ""; err == nil {
			a.docs[peer] = doc
		} else {
			a.peers[peer] = err.Error()
		}
		doc = a.docs[peer]
		all := slices.Collect(maps.Values(a.endpoints))
		a.mu.Unlock()
		if doc != nil {
			for _, e := range all {
				a.update(e, peer, doc)
			}
			a.mu.Lock()
			a.known[peer] = doc
			a.mu.Unlock()
		}
		select {
		case <-ctx.Done():
		case <-time.After(pause):
		}
	}
}

func (a *agent) fetch(ctx context.Context, peer string) (*document, error) {
	req, err := http.NewRequestWithContext(ctx, "GET", "http://"+peer+"/endpoints", nil)
	if err != nil {
		return nil, err
	}
	resp, err := a.client.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	var doc document
	if resp.StatusCode != http.StatusOK {
		return nil, errors.New(resp.Status)
	} else if err := json.NewDecoder(io.LimitReader(resp.Body, maxDoc)).Decode(&doc); err != nil {
		return nil, err
	}
	return &doc, doc.check()
}

func (a *agent) update(e *endpoint, peer string, doc *document) {
	a.mu.Lock()
	probed := e.generation > 0 && doc.Knows[a.id] >= e.generation
	a.mu.Unlock()
	e.update(peer, doc.Endpoints, probed, func(remote string) *probeStats { return a.statsOf(e.name, peer, remote) })
}

// statsOf returns the statistics of an endpoint and a peer's, or nil if the peer has named too
// many.
func (a *agent) statsOf(local, peer, remote string) *probeStats {
	a.mu.Lock()
	defer a.mu.Unlock()
	n := 0
	for _, p := range a.stats {
		if p.local == local && p.peer == peer {
			if p.remote == remote {
				p.named = time.Now()
				return p
			}
			n++
		}
	}
	if n >= maxList {
		return nil
	}
	p := &probeStats{local: local, peer: peer, remote: remote, named: time.Now(), paths: make([]window, a.o.paths)}
	a.stats = append(a.stats, p)
	slices.SortFunc(a.stats, func(x, y *probeStats) int {
		return slices.Compare([]string{x.local, x.peer, x.remote}, []string{y.local, y.peer, y.remote})
	})
	return p
}

// endWindow makes the rows of the last window, and forgets endpoints that no peer has named for
// some time.
func (a *agent) endWindow() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.rows = nil
	a.stats = slices.DeleteFunc(a.stats, func(p *probeStats) bool { return time.Since(p.named) > forget })
	for _, p := range a.stats {
		a.rows = append(a.rows, p.rows()...)
	}
}

func (a *agent) report() *report {
	a.mu.Lock()
	defer a.mu.Unlock()
	r := &report{Window: a.o.window, Peers: maps.Clone(a.peers), Pairs: a.rows}
	for name, e := range a.endpoints {
		r.Endpoints = append(r.Endpoints, state{Name: name, Unknown: e.unknown.Load(), Bad: e.bad.Load(), Stale: e.stale.Load(), Busy: e.busy.Load()})
	}
	for name, err := range a.errs {
		r.Endpoints = append(r.Endpoints, state{Name: name, Error: err.Error()})
	}
	slices.SortFunc(r.Endpoints, func(x, y state) int { return cmp.Compare(x.Name, y.Name) })
	return r
}

func (a *agent) document() *document {
	a.mu.Lock()
	defer a.mu.Unlock()
	d := &document{Instance: a.id, Generation: a.generation, Knows: map[string]int{}}
	for name, e := range a.endpoints {
		if e.generation > 0 {
			d.Endpoints = append(d.Endpoints, remote{name, e.addr, e.qkey})
		}
	}
	for _, doc := range a.known {
		d.Knows[doc.Instance] = doc.Generation
	}
	return d
}

// ServeHTTP implements [http.Handler].
func (a *agent) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	switch r.URL.Path {
	case "/endpoints":
		json.NewEncoder(w).Encode(a.document())
	case "/json":
		json.NewEncoder(w).Encode(a.report())
	case "/":
		a.report().table(w)
	default:
		http.NotFound(w, r)
	}
}
