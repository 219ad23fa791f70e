package hipobj

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/s3rdma/internal/quota"
	"github.com/goverbs/verbs/uverbs"
)

// Limits are how many sessions a server has at a time, and how many bytes of registered memory they
// hold: Sessions, 0 is 256; Bytes, 0 is 1 GiB; and of one account AccountSessions and AccountBytes,
// 0 is a quarter of the others. AccountBytes is also the longest transfer.
type Limits = quota.Limits

// LimitError reports the limit that a session would exceed. Its Never reports whether it would do so
// also without other sessions.
type LimitError = quota.Error

// Options contains options of a [Server].
type Options struct {
	GID    verbs.GIDEntry // the server's; zero is that of port 1 which fits the client's best
	Limits Limits
	// PrepareTime is how long a session waits for READY; 0 is 10 s. MoveTime is how long a session
	// may be used from the first READY on; 0 is 30 s.
	PrepareTime, MoveTime time.Duration
	// Connect has the attributes of connections. Access is ignored, and RNRRetry is at most 6, also
	// by default: 7 would wait forever for a client that posts no receive. The protocol has no path
	// MTU: both sides take that of their port, unless they are told otherwise.
	Connect uverbs.ConnectOptions
}

// Server has the sessions of clients. Its methods may be called by several goroutines.
type Server struct {
	dev     *uverbs.Context
	opt     Options
	maxSize int64
	quota   *quota.Quota

	mu       sync.Mutex
	stats    Stats
	closing  bool
	sessions map[string]*Session // by ID
	open     sync.WaitGroup      // sessions, also those that are not in the map yet
}

var (
	// ErrNoSession is returned for the ID of no session, or of another account's.
	ErrNoSession = errors.New("no such session")
	// ErrServerClosed is returned after [Server.Close], and to what it has ended.
	ErrServerClosed = errors.New("server is closed")

	errCancelled = errors.New("the session has been cancelled")
)

// NewServer makes a server on a device, which must be open until the server is closed.
func NewServer(dev *uverbs.Context, opt Options) (*Server, error) {
	if dev.Device().IWARP() {
		return nil, fmt.Errorf("make server of %s on %s: iWARP has no immediate data: %w", Protocol, dev.Device().Name, errors.ErrUnsupported)
	}
	port, err := dev.QueryPort(cmp.Or(opt.GID.Port, 1))
	if err != nil {
		return nil, err
	}
	opt.PrepareTime, opt.MoveTime = cmp.Or(opt.PrepareTime, 10*time.Second), cmp.Or(opt.MoveTime, 30*time.Second)
	opt.Connect.RNRRetry = min(cmp.Or(opt.Connect.RNRRetry, 6), 6)
	return &Server{dev: dev, opt: opt, maxSize: maxSize(port), quota: quota.New("Sessions", opt.Limits), sessions: map[string]*Session{}}, nil
}

// Close ends all sessions, and waits until those who use them have closed them.
func (s *Server) Close() error {
	if s == nil {
		return verbs.ErrClosed
	}
	s.mu.Lock()
	s.closing = true
	var all []*Session
	for _, x := range s.sessions {
		all = append(all, x)
	}
	s.mu.Unlock()
	for _, x := range all {
		x.expire(ErrServerClosed)
	}
	s.open.Wait()
	return nil
}

// Stats counts what a [Server] has done, and what it has now.
type Stats struct {
	Puts, Gets         uint64 // transfers whose bytes were moved
	PutBytes, GetBytes uint64 // of them
	Failed             uint64 // transfers that began, and moved nothing or not all
	Refused            uint64 // PREPAREs beyond a limit, of another machine's GID, or with values that Request cannot have
	Expired            uint64 // sessions that a deadline has ended

	Sessions int   // now
	Memory   int64 // bytes that they have
}

// Stats returns the current figures.
func (s *Server) Stats() Stats {
	s.mu.Lock()
	defer s.mu.Unlock()
	st := s.stats
	st.Sessions, st.Memory = s.quota.InUse()
	return st
}

// count changes the counts.
func (s *Server) count(f func(*Stats)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f(&s.stats)
}

func refused(st *Stats) { st.Refused++ }

// Prepare makes a session, which the caller publishes or closes. If the client has named its queue
// pair, the session's is connected to it, and that of a PUT has a receive: the client's WRITE may
// come before READY, and would be dropped otherwise until the client repeats it after 67 ms.
//
// The GID of r.Peer says where the server sends packets: see [s3rdma.CheckPeer].
func (s *Server) Prepare(r Request) (_ *Session, err error) {
	defer func() {
		if err != nil {
			s.count(refused)
		}
	}()
	if err := r.check(s.maxSize); err != nil {
		return nil, err
	}
	if err := s.begin(); err != nil {
		return nil, err
	}
	release, err := s.quota.Take(r.Account, r.Size)
	if err != nil {
		s.open.Done()
		return nil, err
	}
	x := &Session{Request: r, server: s, release: release, made: time.Now()}
	x.since = x.made
	x.life, x.end = context.WithCancelCause(context.Background())
	if err := x.make(); err != nil {
		x.Close()
		return nil, err
	}
	if !s.add(x) { // it was closed since begin
		x.Close()
		return nil, ErrServerClosed
	}
	return x, nil
}

// add makes a session one that clients can name, until a deadline.
func (s *Server) add(x *Session) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closing {
		return false
	}
	s.sessions[x.id] = x
	x.timer = time.AfterFunc(s.opt.PrepareTime, func() {
		s.count(func(st *Stats) { st.Expired++ })
		x.expire(fmt.Errorf("the session has lasted longer than the server allows, %v before READY and %v from then on: %w", s.opt.PrepareTime, s.opt.MoveTime, context.DeadlineExceeded))
	})
	return true
}

func (s *Server) begin() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closing {
		return ErrServerClosed
	}
	s.open.Add(1)
	return nil
}

// Session returns an account's session.
func (s *Server) Session(account, id string) (*Session, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if x := s.sessions[id]; x != nil && x.Account == account {
		return x, nil
	}
	return nil, ErrNoSession
}

func newID() string {
	var id [16]byte
	rand.Read(id[:])
	return hex.EncodeToString(id[:])
}
