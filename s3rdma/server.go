package s3rdma

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"net"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/s3rdma/internal/peer"
	"github.com/goverbs/verbs/s3rdma/internal/quota"
	"github.com/goverbs/verbs/uverbs"
)

// Errors of [Server.Remote], and of what a [Remote] does before it has moved anything.
var (
	// ErrToken is returned for a token that is none of the known forms. The answer is 400 InvalidRDMAToken.
	ErrToken = errors.New("invalid RDMA token")
	// ErrDeclined is returned if the bytes have to go by HTTP, in the body.
	ErrDeclined = errors.New("RDMA declined")
	// ErrMemoryLost means that the kernel has not ended a queue pair: the device may still use the memory of
	// the transfer, so nothing else must.
	ErrMemoryLost = errors.New("the device may still use the memory")
)

// ServerOptions contains options for [NewServer]. With the zero value the server uses the first device,
// and clients whose GID is the address that their requests come from.
type ServerOptions struct {
	// Device is the device, which the server leaves open. By default the server opens the first one.
	Device *uverbs.Context
	// GID is the server's end of all paths. By default it is that GID of port 1 which suits the client's,
	// of the same address family and for RoCE v2 if there is one. NewServer reads the table.
	GID verbs.GIDEntry

	Memory int // bytes of registered memory, of all transfers together; 0 is 256 MiB
	Part   int // bytes of an RDMA operation, a multiple of 4096; 0 is 1 MiB
	Parts  int // of a transfer in memory at a time, of which the program has one; 0 is 4

	Limits Limits
	Fabric Fabric

	// Account returns who sent a request, for limits and as the owner of connections: in a server that
	// checks signatures, the account of the signature. By default it is the address of the client.
	Account func(*http.Request) string
	// AllowPeer returns an error unless the server may send packets to a GID that a client has named. By
	// default it is [CheckPeer].
	AllowPeer func(*http.Request, verbs.GID) error
	// Logger gets what fails and, at level Debug, what is declined; nil logs nothing.
	Logger *slog.Logger
}

// Peer is a client that has sent a token.
type Peer struct {
	Account string // for limits, and the owner of connections
	// AllowGID returns an error unless the server may send packets to the GID.
	AllowGID func(verbs.GID) error
}

// peer returns who sent a request.
func (s *Server) peer(r *http.Request) Peer {
	return Peer{s.opt.Account(r), func(gid verbs.GID) error { return s.opt.AllowPeer(r, gid) }}
}

// Limits bound what clients cost. A request beyond them goes by HTTP. Memory is limited by
// [ServerOptions].Memory in all.
type Limits struct {
	Transfers          int   // at a time; 0 is 256
	AccountTransfers   int   // of an account; 0 is a quarter of Transfers. Where Fabric.DCIs are fewer, one account may have all
	AccountBytes       int64 // of registered memory; 0 is a quarter of it, or what a transfer takes if that is more
	Connections        int   // of RC; 0 is 1024
	AccountConnections int   // 0 is a quarter of Connections

	Size int64         // bytes of a transfer; 0 is MaxSize
	Wait time.Duration // of a transfer for memory and a queue pair; 0 is 2 s
	Time time.Duration // of a transfer, with both; 0 is 5 minutes
	Idle time.Duration // of a connection; 0 is 5 minutes
}

// Fabric has the attributes of the server's queue pairs. Zeros mean the defaults of cuObject's servers,
// but for a hop limit of 64, where theirs is 4; a negative number is 0.
type Fabric struct {
	DCIs         int    // of DC: the transfers that move bytes at a time; 0 is 128
	DCKey        uint64 // 0 is DefaultDCKey
	Reads        int    // RDMA READs of a DCI in flight; 0 is 16. An RC connection has one.
	Timeout      int    // 4.096 µs * 2^Timeout; 0 is 16 (268 ms)
	RetryCount   int    // 0 is 7; on RC at most 6, as rxe takes 7 as infinite
	TrafficClass int    // 0 is 96: DSCP 24
	SL           int
	HopLimit     int // 0 is 64
	PKeyIndex    int
}

// connect returns the attributes for a QP.
func (f Fabric) connect(rc bool) uverbs.ConnectOptions {
	opt := uverbs.ConnectOptions{
		MaxRDAtomic: f.Reads, Timeout: cmp.Or(f.Timeout, 16), RetryCount: cmp.Or(f.RetryCount, 7), RNRRetry: 6,
		PKeyIndex: max(f.PKeyIndex, 0), SL: uint8(max(f.SL, 0)), TrafficClass: uint8(max(cmp.Or(f.TrafficClass, 96), 0)), HopLimit: f.HopLimit,
	}
	if rc {
		// elbencho's clients answer one READ at a time.
		opt.MaxRDAtomic, opt.RetryCount = 1, min(opt.RetryCount, 6)
	}
	return opt
}

func (f Fabric) check() error {
	for _, v := range []struct {
		name    string
		n, most int
	}{
		{"DCIs", f.DCIs, 1 << 16}, {"Reads", f.Reads, 255}, {"Timeout", f.Timeout, 31}, {"RetryCount", f.RetryCount, 7},
		{"TrafficClass", f.TrafficClass, 255}, {"SL", f.SL, 15}, {"HopLimit", f.HopLimit, 255}, {"PKeyIndex", f.PKeyIndex, 1<<16 - 1},
	} {
		if v.n > v.most {
			return fmt.Errorf("option Fabric.%s is %d, at most %d: %w", v.name, v.n, v.most, verbs.ErrRange)
		}
	}
	return nil
}

// Server moves bytes between its memory and that of clients, whose tokens name it. Clients have no access
// to the server's memory: the server posts all operations, and its memory and queue pairs grant no
// remote access. [Server.Handler] is the front for net/http, and [Server.Remote] what is beneath it.
// A Server is also the http.Handler of [PathRC], where clients connect.
type Server struct {
	opt   ServerOptions
	dev   *uverbs.Context
	own   bool // the server has opened dev
	pd    *uverbs.PD
	ch    *uverbs.CompChannel
	arena *uverbs.Arena
	gids  []verbs.GIDEntry
	rxe   bool // see Remote.prove

	transfers, connections *quota.Quota
	dc                     *dcis // nil if the device has no DC
	rc                     conns
	stats                  counters

	mu      sync.Mutex
	closed  bool
	running sync.WaitGroup // transfers and connections that are being made

	closing  sync.Mutex // held by Close
	released bool       // of closing
}

// NewServer makes a server, and registers its memory.
func NewServer(opt ServerOptions) (s *Server, err error) {
	opt.Memory, opt.Part, opt.Parts = cmp.Or(opt.Memory, 256<<20), cmp.Or(opt.Part, 1<<20), cmp.Or(opt.Parts, 4)
	l := &opt.Limits
	l.Transfers, l.Connections, l.Size = cmp.Or(l.Transfers, 256), cmp.Or(l.Connections, 1024), cmp.Or(l.Size, MaxSize)
	l.Wait, l.Time, l.Idle = cmp.Or(l.Wait, 2*time.Second), cmp.Or(l.Time, 5*time.Minute), cmp.Or(l.Idle, 5*time.Minute)
	opt.Logger = cmp.Or(opt.Logger, slog.New(slog.DiscardHandler))
	if opt.Account == nil {
		opt.Account = func(r *http.Request) string {
			addr, _, _ := net.SplitHostPort(r.RemoteAddr)
			return addr
		}
	}
	if opt.AllowPeer == nil {
		opt.AllowPeer = CheckPeer
	}
	if err = opt.Fabric.check(); err != nil {
		return nil, fmt.Errorf("new server: %w", err)
	}
	l.AccountBytes = cmp.Or(l.AccountBytes, max(int64(opt.Memory/4), int64(opt.Part)*int64(opt.Parts)))
	if opt.Part%pageSize != 0 || opt.Part < 0 || opt.Parts < 2 || opt.Parts > laneDepth || opt.Memory/opt.Parts < opt.Part {
		return nil, fmt.Errorf("new server: %d parts of %d bytes in memory of %d: want 2 to %d parts of a multiple of %d bytes, and room for them: %w", opt.Parts, opt.Part, opt.Memory, laneDepth, pageSize, verbs.ErrRange)
	}
	s = &Server{
		opt: opt, dev: opt.Device,
		transfers: quota.New("Transfers", quota.Limits{ // the arena limits the bytes of all, and transfers wait for them
			Sessions: l.Transfers, AccountSessions: l.AccountTransfers, Bytes: math.MaxInt64, AccountBytes: l.AccountBytes,
		}),
		connections: quota.New("Connections", quota.Limits{Sessions: l.Connections, AccountSessions: l.AccountConnections}),
	}
	defer func() {
		if err != nil {
			s.release()
			s = nil
		}
	}()
	if s.dev == nil {
		s.own = true
		if s.dev, err = uverbs.Open(""); err != nil {
			return s, err
		}
	}
	if s.dev.Device().IWARP() {
		return s, fmt.Errorf("new server on %s: the protocols connect queue pairs without a connection manager, which iWARP cannot: use RoCE or InfiniBand: %w", s.dev.Device().Name, errors.ErrUnsupported)
	}
	if s.gids, err = peer.Table(s.dev, opt.GID); err != nil {
		return s, err
	}
	if s.pd, err = s.dev.AllocPD(); err != nil {
		return s, err
	}
	if s.ch, err = s.dev.CreateCompChannel(); err != nil {
		return s, err
	}
	s.rxe = s.dev.Driver() == "rxe"
	if s.arena, err = s.pd.AllocArena(opt.Memory, verbs.AccessLocalWrite, uverbs.ArenaOptions{Align: pageSize}); err != nil {
		return s, err
	}
	s.rc.init(s)
	if err := s.dev.Probe(uverbs.FeatureDC); err == nil {
		s.dc = newDCIs(s)
	} else if !errors.Is(err, errors.ErrUnsupported) {
		return s, err
	}
	return s, nil
}

// pageSize is what blocks are aligned to, so that programs can use them with O_DIRECT.
const pageSize = 4096

// Close ends all transfers and connections, and waits for them. Requests that come later go by HTTP. While the
// program uses [Server.PD], or memory of the server's, the error matches [verbs.ErrInUse]: call Close again.
func (s *Server) Close() error {
	if s == nil {
		return verbs.ErrClosed
	}
	s.closing.Lock()
	defer s.closing.Unlock()
	if s.released {
		return verbs.ErrClosed
	}
	s.mu.Lock()
	s.closed = true
	s.mu.Unlock()
	if s.dc != nil {
		s.dc.stop()
	}
	s.rc.stop()
	s.running.Wait()
	err := s.release()
	s.released = err == nil
	return err
}

// release closes what NewServer has made. It may be called again.
func (s *Server) release() (err error) {
	if s.dc != nil {
		err = s.dc.close()
	}
	closers := []interface{ Close() error }{s.arena, s.ch, s.pd}
	if s.own {
		closers = append(closers, s.dev)
	}
	for _, c := range closers {
		if e := c.Close(); !errors.Is(e, verbs.ErrClosed) { // of nil, as NewServer has failed
			err = cmp.Or(err, e)
		}
	}
	return err
}

// enter counts something that Close waits for until running.Done.
func (s *Server) enter() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return verbs.ErrClosed
	}
	s.running.Add(1)
	return nil
}

// Block takes n bytes of registered memory, for [Remote.Move], and waits for them. They have what another
// transfer has left.
func (s *Server) Block(ctx context.Context, n int) (*uverbs.Block, error) { return s.arena.Get(ctx, n) }

// PD returns the protection domain of the server's memory, for programs that have buffers of their own:
// [Remote.Move] takes those that are registered in it. They are closed before the server.
func (s *Server) PD() *uverbs.PD { return s.pd }

// Remote returns a client's memory. The error matches [ErrToken] or [ErrDeclined].
func (s *Server) Remote(p Peer, token string) (*Remote, error) {
	r := &Remote{s: s, peer: p}
	first, _, _ := strings.Cut(token, ":")
	switch {
	case strings.HasPrefix(token, rcPrefix):
		t, err := ParseRCToken(token)
		if err != nil {
			return nil, fmt.Errorf("%w: %w", ErrToken, err)
		}
		c := s.rc.find(p.Account, t.Conn)
		if c == nil {
			return nil, s.decline(p, ReasonConnection, fmt.Errorf("RDMA connection %s does not exist, or has ended: connect again", t.Conn))
		}
		r.target = target{t.Addr, int64(min(t.Size, 1<<62)), t.RKey, c.ends, c.take}
	case len(first) > 16: // of another protocol, such as hipObject's version 1
		return nil, s.decline(p, ReasonTransport, errors.New("the token is of another protocol than cuObject's"))
	default:
		t, err := ParseDCToken(token)
		if err != nil {
			return nil, fmt.Errorf("%w: %w", ErrToken, err)
		}
		if s.dc == nil {
			return nil, s.decline(p, ReasonTransport, fmt.Errorf("%s has no DC, which the token is for: clients have to connect at %s", s.dev.Device().Name, PathConnect))
		}
		addr := verbs.QPAddr{QPNum: t.QPNum, LID: t.LID}
		if t.Global {
			addr.GID = t.GID
		}
		gid, err := s.path(p, addr.GID)
		if err != nil {
			return nil, err
		}
		av := addr.PathFrom(verbs.QPAddr{GIDIndex: gid.Index, Port: gid.Port})
		take := func(ctx context.Context) (*lane, error) { return s.dc.take(ctx, av, t.QPNum) }
		r.target = target{t.Addr, int64(t.Size), t.RKey, ends{verbs.QPAddr{GID: gid.GID}, addr}, take}
	}
	return r, nil
}

// path returns the server's end of a path to a client's GID, or declines it.
func (s *Server) path(p Peer, to verbs.GID) (verbs.GIDEntry, error) {
	if err := p.AllowGID(to); err != nil {
		return verbs.GIDEntry{}, s.decline(p, ReasonGID, err)
	}
	gid, err := peer.GID(s.gids, to)
	if err != nil {
		err = s.decline(p, ReasonTransport, err)
	}
	return gid, err
}
