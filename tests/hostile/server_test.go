package hostile

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/goverbs/verbs/internal/labtest"
	"github.com/goverbs/verbs/uverbs"
)

// server is a listener of a layer that echoes, and records how its connections
// end.
type server struct {
	device, addr     string
	handshakeTimeout time.Duration // for handshakes

	mu    sync.Mutex
	ended map[string]error // by the peer's address
	conns map[string]any   // the layer's established connections
	peers sync.Map         // all addresses that peers have used
}

// claimAddr reports whether a peer is the first from its address.
func (s *server) claimAddr(p *peer) bool {
	_, seen := s.peers.LoadOrStore(p.LocalAddr().String(), true)
	return !seen
}

// addConn records an established connection.
func (s *server) addConn(peer string, c any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.conns[peer] = c
}

// waitConn waits for a peer's connection at the server and returns it.
func (s *server) waitConn(t *testing.T, peer string) (c any) {
	t.Helper()
	labtest.Until(t, "the server's connection", func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		c = s.conns[peer]
		return c != nil
	})
	return c
}

// onlyConn returns the only connection.
func (s *server) onlyConn(t *testing.T) any {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.conns) != 1 {
		t.Fatalf("%d connections", len(s.conns))
	}
	for _, c := range s.conns {
		return c
	}
	return nil
}

// report records how a connection ended: nil is a normal end.
func (s *server) report(peer string, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ended[peer] = err
	delete(s.conns, peer)
}

// connError returns how the server's side of a peer's connection ended, if it has.
func (s *server) connError(p *peer) (err error, ended bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	err, ended = s.ended[p.LocalAddr().String()]
	return err, ended
}

// layer is a package under attack.
type layer struct {
	name  string
	serve func(t *testing.T, s *server)
	// dial connects a client that follows the protocol.
	dial func(ctx context.Context, addr string) (client, error)
	// private returns the private data of a peer that follows the protocol until it is
	// connected, and hello is that of a peer without memory.
	private func(p *peer) []byte
	hello   []byte
	// warm makes the victim allocate all the memory that a connection may have.
	warm func(p *peer)
	// refusedErrors are the errors of a dial if the answer is one that listeners refuse.
	refusedErrors []error
	// pending returns how many MRs n connections have that are never established.
	pending func(n int) int
	attacks []attack
}

// client is a connection of a layer: echo sends bytes, and returns the
// answer.
type client struct {
	echo func([]byte) ([]byte, error)
	end  func() error
}

// echoOnce connects, exchanges a message, and disconnects.
func (l layer) echoOnce(addr string) error {
	ctx, cancel := context.WithTimeout(context.Background(), waitTimeout)
	defer cancel()
	c, err := l.dial(ctx, addr)
	if err == nil {
		_, err = c.echo([]byte("hello"))
		err = errors.Join(err, c.end())
	}
	return err
}

// attack describes what a peer does, and how its connection ends.
type attack struct {
	name    string
	private func(p *peer) []byte // nil is the layer's
	do      func(p *peer)        // after it is connected
	want    []error              // one of them ends the connection; errRefused: the dial fails
	siw     []error              // the same for siw, if different
	needs   uverbs.Feature       // of the device
	iwarp   bool                 // only for iWARP
}

// isFor reports whether the attack is one on a device.
func (a *attack) isFor(t *testing.T, device string) bool {
	return (a.needs == "" || labtest.Has(t, device, a.needs)) && (!a.iwarp || labtest.IWARP(t, device))
}

var (
	errRefused   = errors.New("the handshake is refused")
	errStaysOpen = errors.New("the connection continues")
	errCleanEnd  = errors.New("the connection ends in good order")
)

// goodClient is a client that continuously exchanges data with a server.
type goodClient struct {
	rounds atomic.Int64
	failed atomic.Pointer[string]
	stop   chan struct{}
	wg     sync.WaitGroup
}

func newGoodClient(echo func([]byte) ([]byte, error)) *goodClient {
	g := &goodClient{stop: make(chan struct{})}
	g.wg.Go(func() {
		r := rand.NewChaCha8([32]byte{1})
		for seq := 0; ; seq++ {
			select {
			case <-g.stop:
				return
			case <-time.After(5 * time.Millisecond):
			}
			sent := make([]byte, 1+seq*97%1500)
			r.Read(sent)
			got, err := echo(sent)
			if err == nil && !bytes.Equal(got, sent) {
				err = fmt.Errorf("sent %d bytes, got %d, or others", len(sent), len(got))
			}
			if err != nil {
				why := fmt.Sprintf("round %d: %v", seq, err)
				g.failed.Store(&why)
				return
			}
			g.rounds.Add(1)
		}
	})
	return g
}

// checkServed checks that the good client is still served.
func (g *goodClient) checkServed(t *testing.T) {
	t.Helper()
	from := g.rounds.Load()
	labtest.Until(t, "the good client's echo", func() bool { return g.rounds.Load() >= from+2 || g.failed.Load() != nil })
	if why := g.failed.Load(); why != nil {
		t.Fatalf("the good client: %s", *why)
	}
}

func (g *goodClient) end() { close(g.stop); g.wg.Wait() }

// withServer runs a test against a server of a layer with a good client.
func withServer(t *testing.T, l layer, device string, shake time.Duration, test func(t *testing.T, s *server, g *goodClient)) {
	s := &server{device: device, handshakeTimeout: shake, ended: map[string]error{}, conns: map[string]any{}}
	t.Run(l.name, func(t *testing.T) {
		labtest.DriverLog(t)
		l.serve(t, s)
		ctx := labtest.Within(t, waitTimeout)
		c := labtest.Must(l.dial(ctx, s.addr))(t)
		g := newGoodClient(c.echo)
		t.Cleanup(func() {
			g.end()
			if err := c.end(); err != nil {
				t.Error(err)
			}
		})
		labtest.Until(t, "messages of all sizes", func() bool { return g.rounds.Load() > 25 || g.failed.Load() != nil })
		g.checkServed(t)
		test(t, s, g)
		g.checkServed(t)
	})
}

// runAttack runs an attack and checks its end.
func (l layer) runAttack(t *testing.T, s *server, g *goodClient, a attack) {
	t.Helper()
	want := a.want
	if s.device == labtest.SIW && a.siw != nil {
		want = a.siw
	}
	private := a.private
	if private == nil {
		private = l.private
	}
	p, err := dialPeer(t, s, private)
	if want[0] == errRefused {
		if !labtest.Rejected(t, s.device, err) {
			t.Errorf("dialing gave %v", err)
		}
		g.checkServed(t)
		return
	}
	if err != nil {
		t.Fatal(err)
	}
	if a.do != nil {
		a.do(p)
	}
	end, ended := s.connError(p)
	if want[0] == errStaysOpen && !ended && !p.ended() {
		g.checkServed(t)
		if end, ended = s.connError(p); !ended {
			return
		}
	}
	labtest.Until(p.t, "the end of the connection", func() bool { end, ended = s.connError(p); return ended })
	ok := false
	for _, w := range want {
		ok = ok || errors.Is(end, w) || w == errCleanEnd && end == nil
	}
	labtest.Until(p.t, "the peer to be disconnected", p.ended)
	if !ok {
		t.Errorf("ended with %v, the peer with %v, want %v", end, p.Err(), want)
	}
	g.checkServed(t)
}

// usage holds the resources that a flood might increase.
type usage struct {
	heap, rss int // bytes
	mrs       int
}

func currentUsage(t *testing.T, device string) usage {
	t.Helper()
	inv := labtest.Inventory(t) // collects garbage first
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	text := labtest.Must(os.ReadFile("/proc/self/status"))(t)
	u := usage{heap: int(m.HeapAlloc), mrs: inv["kernel mr of "+device]}
	for line := range strings.Lines(string(text)) {
		fmt.Sscanf(line, "VmRSS: %d kB", &u.rss)
	}
	u.rss <<= 10
	return u
}

// checkGrowth checks that usage has grown by no more than most since before.
func (before usage) checkGrowth(t *testing.T, device string, most usage) {
	t.Helper()
	now := currentUsage(t, device)
	within := func() bool {
		return now.heap-before.heap <= most.heap && now.rss-before.rss <= most.rss && now.mrs-before.mrs <= most.mrs
	}
	for end := time.Now().Add(waitTimeout); !within() && time.Now().Before(end); time.Sleep(50 * time.Millisecond) { // ended connections are being released
		now = currentUsage(t, device)
	}
	t.Logf("heap %+d KiB, RSS %+d KiB, MRs %+d", (now.heap-before.heap)>>10, (now.rss-before.rss)>>10, now.mrs-before.mrs)
	if !within() {
		t.Errorf("grew from %+v to %+v, more than %+v", before, now, most)
	}
}
