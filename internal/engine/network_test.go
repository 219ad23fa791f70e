package engine

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"sync"
	"syscall"

	"github.com/goverbs/verbs/internal/netif"
)

// faults are what a testNetwork does to packets, as probabilities.
type faults struct {
	loss, dup, reorder float64
	queue              int // packets that a port holds; 0: no limit
	limit              int // bytes of a packet that links carry; 0: no limit
}

// testNetwork is a network in memory.
type testNetwork struct {
	mu    sync.Mutex
	ports map[netip.AddrPort]*testPort
	rng   *rand.Rand
	faults
	mtu   int
	sent  int
	lost  int
	extra int // duplicates
}

func newTestNetwork(seed uint64, f faults) *testNetwork {
	return &testNetwork{ports: make(map[netip.AddrPort]*testPort), rng: rand.New(rand.NewPCG(seed, 1)), faults: f, mtu: 9000}
}

// testPort delivers packets from a goroutine of its own.
type testPort struct {
	net    *testNetwork
	addr   netip.AddrPort
	wait   *sync.Cond // of net.mu
	queue  []netif.Packet
	closed bool
	done   chan struct{}
	free   [][]byte
}

func (n *testNetwork) Open(addr netip.AddrPort) (netif.Port, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.ports[addr] != nil {
		return nil, fmt.Errorf("address %v is in use", addr)
	}
	p := &testPort{net: n, addr: addr, wait: sync.NewCond(&n.mu)}
	n.ports[addr] = p
	return p, nil
}

func (p *testPort) Addr() netip.AddrPort { return p.addr }
func (p *testPort) MTU() int             { return p.net.mtu }

func (p *testPort) Send(pkts []netif.Packet) error {
	n := p.net
	n.mu.Lock()
	defer n.mu.Unlock()
	var err error
	for i := range pkts {
		if n.limit > 0 && len(pkts[i].Data) > n.limit {
			if err == nil {
				err = fmt.Errorf("to %v: %w", pkts[i].Dst, &netif.TooLargeError{Index: i, Err: syscall.EMSGSIZE})
			}
			continue
		}
		n.sent++
		if n.rng.Float64() < n.loss {
			n.lost++
			continue
		}
		n.deliver(&pkts[i])
		if n.rng.Float64() < n.dup {
			n.extra++
			n.deliver(&pkts[i])
		}
	}
	return err
}

// deliver queues a copy of a packet at its destinations.
func (n *testNetwork) deliver(p *netif.Packet) {
	for addr, to := range n.ports {
		if addr != p.Dst && !p.Dst.Addr().IsMulticast() || to.closed || addr == p.Src {
			continue
		}
		if n.queue > 0 && len(to.queue) >= n.queue {
			n.lost++
			continue
		}
		c := *p
		var buf []byte
		if k := len(to.free); k > 0 {
			buf, to.free = to.free[k-1], to.free[:k-1]
		}
		c.Data = append(buf[:0], p.Data...)
		c.IDKnown = true
		to.queue = append(to.queue, c)
		if k := len(to.queue); k > 1 && n.rng.Float64() < n.reorder {
			j := k - 2 - n.rng.IntN(min(k-1, 8))
			to.queue[j], to.queue[k-1] = to.queue[k-1], to.queue[j]
		}
		to.wait.Signal()
	}
}

func (p *testPort) Start(receive func([]netif.Packet)) {
	p.done = make(chan struct{})
	go func() {
		defer close(p.done)
		var batch []netif.Packet
		for {
			p.net.mu.Lock()
			for i := range batch {
				if len(p.free) < 4096 {
					p.free = append(p.free, batch[i].Data)
				}
			}
			for len(p.queue) == 0 && !p.closed {
				p.wait.Wait()
			}
			if p.closed {
				p.net.mu.Unlock()
				return
			}
			k := min(len(p.queue), 64)
			batch = append(batch[:0], p.queue[:k]...)
			p.queue = p.queue[:copy(p.queue, p.queue[k:])]
			p.net.mu.Unlock()
			receive(batch)
		}
	}()
}

func (p *testPort) Close() error {
	p.net.mu.Lock()
	p.closed = true
	delete(p.net.ports, p.addr)
	p.wait.Broadcast()
	done := p.done
	p.net.mu.Unlock()
	if done != nil {
		<-done
	}
	return nil
}

// set changes the faults.
func (n *testNetwork) set(f faults) {
	n.mu.Lock()
	n.faults = f
	n.mu.Unlock()
}
