package soak

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/goverbs/verbs/tests/workload"
)

// clients are the clients of all layers in a process.
type clients struct {
	*side
	counts  []count // of the layers
	ended   chan struct{}
	endLoop func() error

	mu       sync.Mutex
	progress []layerProgress
}

// layerProgress tracks the progress of a layer.
type layerProgress struct {
	rounds, bytes uint64
	since         time.Time
	longest       time.Duration
}

// startClients starts the clients. Each makes one connection after another to a server,
// until s.stop is closed.
func startClients(s *side, addrs map[string]string, seed uint64) (*clients, error) {
	c := &clients{side: s, counts: make([]count, len(s.layers)), ended: make(chan struct{}), progress: make([]layerProgress, len(s.layers))}
	var err error
	if s.loop, c.endLoop, err = workload.RunLoop(workload.MsgOptions); err != nil {
		return nil, err
	}
	var working sync.WaitGroup
	for i, l := range s.layers {
		c.progress[i].since = time.Now()
		for w := range l.workers {
			r := rand.New(rand.NewPCG(seed, uint64(l.Name[0])<<32|uint64(l.Name[1])<<16|uint64(w)))
			working.Go(func() { c.run(l, w, addrs[l.Name], r, &c.counts[i]) })
		}
	}
	go func() {
		working.Wait()
		close(c.ended)
	}()
	return c, nil
}

// run runs a client of a layer.
func (c *clients) run(l layer, w int, addr string, r *rand.Rand, n *count) {
	for life := 0; c.ctx.Err() == nil && !c.stopping(); life++ {
		c.rest(r)
		ctx, cancel := withLifetime(c.ctx)
		err := l.runConn(ctx, c.side, addr, r, n)
		cancel()
		if err != nil {
			c.fail(l.Name, fmt.Sprintf("client %d, connection %d", w, life), err)
			return
		}
		n.conns.Add(1)
	}
}

// check ends the run if a layer has made no progress for too long.
func (c *clients) check(report func(layer string, since time.Duration)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for i := range c.progress {
		n, p := &c.counts[i], &c.progress[i]
		since := time.Since(p.since)
		p.longest = max(p.longest, since)
		if m, b := n.rounds.Load(), n.bytes.Load(); m != p.rounds || b != p.bytes {
			p.rounds, p.bytes, p.since = m, b, time.Now()
		} else if since > *stall {
			report(c.layers[i].Name, since)
			return
		}
	}
}

// addWork adds what the layers have done.
func (c *clients) addWork(all map[string]work, suffix string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for i, l := range c.layers {
		n := &c.counts[i]
		all[l.Name+suffix] = work{
			Rounds: n.rounds.Load(), Bytes: n.bytes.Load(), Connections: n.conns.Load(), Rest: c.progress[i].longest.Seconds(),
		}
	}
}

// end ends the clients.
func (c *clients) end() error {
	close(c.stop)
	select {
	case <-c.ended:
		return nil
	case <-time.After(lifetime + time.Minute):
		err := errors.New("clients do not end\n" + stacks())
		c.cancel()
		<-c.ended
		return err
	}
}
