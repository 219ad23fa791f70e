package s3rdma

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/uverbs"
)

const (
	defaultMemory = 256 << 20
	defaultGet    = 8 << 20
	clientPause   = time.Minute // without offers, for a server that has no RDMA
	knownTime     = time.Hour   // that a server is known without requests
)

// ClientOptions contains options for [NewClient]. The zero value suits most programs.
type ClientOptions struct {
	// Device is the device, as for [uverbs.Open]. By an address it is also that of the packets.
	Device string
	// RC makes tokens of RC queue pairs on devices that have DC as well.
	RC bool
	// DCKey is the key of the DC target, which servers are configured with; 0 means DefaultDCKey.
	DCKey uint64
	// QP contains the path MTU, traffic class, hop limit and other attributes of the queue pairs.
	QP uverbs.ConnectOptions
	// Memory is the most bytes that are registered at a time; 0 means 256 MiB. Requests that find no
	// room use HTTP.
	Memory int
	// GetSize is the longest object that a GET without a range expects, unless its context says it
	// ([WithSize]); 0 means 8 MiB. Longer objects use HTTP.
	GetSize int
	// MinSize is the least that goes by RDMA, as far as it is known: of PUTs, ranges, and GETs with
	// [WithSize]. Less uses HTTP, which is faster for objects of some KiB; 0 means 1.
	MinSize int64
	// Checksum is the algorithm for PUTs whose headers have no checksum and name no algorithm: CRC32,
	// CRC32C, CRC64NVME, SHA1 or SHA256. "" means CRC32C.
	Checksum string
	// Do sends the requests that connect and disconnect RC queue pairs, signed if the server wants
	// that; nil means [http.DefaultClient]. A [Transport] sends them as its others.
	Do func(*http.Request) (*http.Response, error)
	// Logger gets what went by HTTP instead, and why; nil logs nothing.
	Logger *slog.Logger
}

// Client offers registered memory to S3 servers that move objects by RDMA, and takes their answers.
// Programs use it by a [Transport], or, where an SDK signs requests, by [Client.Offer].
//
// The servers of a Client can read and write the memory of its requests, those to other servers
// included: use a Client for each server that you trust differently.
//
// All methods may be called concurrently.
type Client struct {
	opt   ClientOptions
	log   *slog.Logger
	dev   *uverbs.Context
	pd    *uverbs.PD
	gid   verbs.GIDEntry
	dc    *clientQP // nil without DC
	local verbs.QPAddr
	jobs  sync.WaitGroup // requests that disconnect queue pairs

	regions atomic.Uint64 // that have been registered

	mu         sync.Mutex // nothing waits that holds it
	closed     bool
	idle       []*buffer // the last one was used last
	registered int       // bytes of all buffers
	lent       int       // buffers that are not idle
	hosts      map[string]*host
	awaited    map[*Offer]awaited // that the servers have not answered
	swept      time.Time          // when sweep has seen all hosts
	stats      ClientStats
}

// host is what a Client knows of a server.
type host struct {
	knows  bool      // it has answered a token, or connected a queue pair
	used   time.Time // by the last request or queue pair
	resume time.Time // until then it is offered nothing
	idle   []*clientQP
}

// ClientStats are a Client's counts.
type ClientStats struct {
	Puts, Gets         uint64            // by RDMA
	PutBytes, GetBytes uint64            // by RDMA
	Fallbacks          map[string]uint64 // requests that used HTTP, by each of the reasons in docs/s3.md
	Registered         int               // bytes of memory now
	Lent               int               // buffers in use now, those of bodies that are not closed included
	Idle               int               // RC queue pairs that wait for a request
}

// NewClient opens a device. It fails on devices without RC queue pairs that programs can connect
// by themselves, as those of iWARP.
func NewClient(opt ClientOptions) (*Client, error) {
	if _, ok := checksums[cmp.Or(opt.Checksum, "CRC32C")]; !ok {
		return nil, fmt.Errorf("s3rdma: make client: checksum %q: want one of CRC32, CRC32C, CRC64NVME, SHA1, SHA256", opt.Checksum)
	}
	if opt.GetSize < 0 || opt.GetSize >= MaxSize || opt.Memory < 0 || opt.MinSize < 0 {
		return nil, fmt.Errorf("s3rdma: make client: GetSize %d, Memory %d, MinSize %d: want less than %d, and no negative ones", opt.GetSize, opt.Memory, opt.MinSize, MaxSize)
	}
	opt.DCKey = cmp.Or(opt.DCKey, DefaultDCKey)
	opt.Memory, opt.GetSize = cmp.Or(opt.Memory, defaultMemory), cmp.Or(opt.GetSize, defaultGet)
	opt.Checksum = cmp.Or(opt.Checksum, "CRC32C")
	opt.QP.Access = verbs.AccessRemoteRead | verbs.AccessRemoteWrite
	if opt.Do == nil {
		opt.Do = http.DefaultClient.Do
	}
	c := &Client{opt: opt, log: cmp.Or(opt.Logger, slog.New(slog.DiscardHandler)), hosts: map[string]*host{}, awaited: map[*Offer]awaited{}}
	c.stats.Fallbacks = map[string]uint64{}
	for _, reason := range fallbacks {
		c.stats.Fallbacks[reason] = 0
	}
	if err := c.open(); err != nil {
		return nil, errors.Join(fmt.Errorf("s3rdma: make client: %w", err), c.release())
	}
	return c, nil
}

func (c *Client) open() (err error) {
	if c.dev, err = uverbs.Open(c.opt.Device); err != nil {
		return err
	}
	if c.dev.Device().IWARP() {
		return fmt.Errorf("%s speaks iWARP, where only the connection manager connects queue pairs: use a device of RoCE or InfiniBand: %w", c.dev.Device().Name, errors.ErrUnsupported)
	}
	addr, _ := netip.ParseAddr(c.opt.Device) // or it is a name
	if c.gid, err = c.dev.FindGID(1, addr); err != nil {
		return err
	}
	if c.pd, err = c.dev.AllocPD(); err != nil {
		return err
	}
	if c.opt.RC || c.dev.Probe(uverbs.FeatureDC) != nil {
		return nil
	}
	c.dc = &clientQP{made: time.Now()}
	if err = c.dc.makeDCT(c); err != nil {
		return err
	}
	c.local, err = c.dc.qp.AddrOn(c.gid)
	return err
}

// release closes what open has made.
func (c *Client) release() error {
	var errs []error
	if c.dc != nil {
		errs = append(errs, c.dc.close())
	}
	if c.pd != nil {
		errs = append(errs, c.pd.Close())
	}
	if c.dev != nil {
		errs = append(errs, c.dev.Close())
	}
	return errors.Join(errs...)
}

// Close releases memory and device. While offers and bodies are not closed it changes nothing, and
// its error matches [verbs.ErrInUse].
func (c *Client) Close() error {
	if c == nil {
		return fmt.Errorf("s3rdma: close client: %w", verbs.ErrClosed)
	}
	c.mu.Lock()
	if c.closed || c.lent > 0 {
		defer c.mu.Unlock()
		if c.closed {
			return fmt.Errorf("s3rdma: close client: %w", verbs.ErrClosed)
		}
		return fmt.Errorf("s3rdma: close client: %d buffers belong to requests or to bodies that are not closed: %w", c.lent, verbs.ErrInUse)
	}
	c.closed = true
	idle, hosts := c.idle, c.hosts
	c.idle, c.hosts = nil, map[string]*host{}
	c.mu.Unlock()
	var errs []error
	for _, b := range idle {
		errs = append(errs, b.free())
	}
	for _, h := range hosts {
		for _, q := range h.idle {
			c.disconnect(q)
		}
	}
	c.jobs.Wait()
	return errors.Join(append(errs, c.release())...)
}

// Addr returns the address of this side's packets. Servers may want requests to come from it: let the
// dialer of the HTTP transport have it as LocalAddr. On InfiniBand it is no address of IP.
func (c *Client) Addr() netip.Addr { return c.gid.GID.Addr() }

// Stats returns the current counts.
func (c *Client) Stats() ClientStats {
	c.mu.Lock()
	defer c.mu.Unlock()
	s := c.stats
	s.Fallbacks = maps.Clone(s.Fallbacks)
	s.Registered, s.Lent = c.registered, c.lent
	for _, h := range c.hosts {
		s.Idle += len(h.idle)
	}
	return s
}

// Reasons of fallbacks.
const (
	byLength    = "length"    // the body has no known length
	bySmall     = "small"     // less than MinSize
	bySize      = "size"      // more than a transfer, or than the memory for a GET, can have
	byEncoding  = "encoding"  // the body is aws-chunked
	byCondition = "condition" // a conditional PUT, to a server that is not known to have RDMA
	byChecksum  = "checksum"  // the headers name an algorithm that is not known here
	bySigned    = "signed"    // the request is signed already, and Transport.Sign is nil
	byMemory    = "memory"    // no room for a buffer, or none could be registered
	byConnect   = "connect"   // no queue pair could be connected
	byPause     = "pause"     // the server has been found without RDMA
	byDeclined  = "declined"  // the server has answered that it has moved nothing
	byIgnored   = "ignored"   // the server has not answered the token
	byFailed    = "failed"    // the server has failed, or did not answer
)

// fallbacks are all reasons.
var fallbacks = []string{byLength, bySmall, bySize, byEncoding, byCondition, byChecksum, bySigned, byMemory, byConnect, byPause, byDeclined, byIgnored, byFailed}

// fallback counts a request that uses HTTP. An operator has to know of some reasons; others are
// the order of the day.
func (c *Client) fallback(req *http.Request, reason string, err error) {
	c.mu.Lock()
	c.stats.Fallbacks[reason]++
	c.mu.Unlock()
	level := slog.LevelDebug
	switch reason {
	case bySigned, byMemory, byConnect, byIgnored, byFailed:
		level = slog.LevelWarn
	}
	c.log.Log(req.Context(), level, "request uses HTTP", "reason", reason, "method", req.Method, "host", req.URL.Host, "path", req.URL.Path, "err", err)
}

// host returns what is known of a server, to add to it. c.mu is held.
func (c *Client) host(name string) *host {
	h := c.hosts[name]
	if h == nil {
		h = &host{}
		c.hosts[name] = h
	}
	h.used = time.Now()
	return h
}

// knows reports whether a server has answered a token or connected a queue pair.
func (c *Client) knows(name string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	h := c.hosts[name]
	return h != nil && h.knows
}

func (c *Client) learn(name string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.host(name).knows = true
}

// sweep returns queue pairs that have been idle for long, and forgets servers of which nothing is known, or that no
// request has used for long: with buckets as a part of the host's name there is one for each bucket. It goes
// through all servers once in idleTime, and returns at most sweepMost at a time, as a request waits for their end.
// c.mu is held.
func (c *Client) sweep() (old []*clientQP) {
	now := time.Now()
	if now.Sub(c.swept) < idleTime {
		return nil
	}
	for name, h := range c.hosts {
		for len(h.idle) > 0 && now.Sub(h.idle[0].used) >= idleTime {
			if len(old) == sweepMost {
				return old
			}
			old, h.idle = append(old, h.idle[0]), h.idle[1:]
		}
		if len(h.idle) == 0 && now.After(h.resume) && (!h.knows || now.Sub(h.used) >= knownTime) {
			delete(c.hosts, name)
		}
	}
	c.swept = now
	return old
}

type sizeKey struct{}

// WithSize returns a context for a GET of an object or a part of n bytes, or fewer. The memory that
// the GET offers has that size.
func WithSize(ctx context.Context, n int64) context.Context {
	return context.WithValue(ctx, sizeKey{}, n)
}

var errClientClosed = fmt.Errorf("s3rdma: client: %w", verbs.ErrClosed)
