package s3rdma

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"time"

	"github.com/goverbs/verbs"
)

// keepAlive is the interval at which an idle connection is tested: without requests, a queue pair does
// not notice that its peer has gone.
const keepAlive = 15 * time.Second

// conns are the RC connections of a server.
type conns struct {
	s    *Server
	mu   sync.Mutex
	byID map[string]*conn
}

// conn is a client's connection. One transfer has it at a time.
type conn struct {
	s       *Server
	id      string
	peer    Peer
	lane    *lane
	ends    ends
	made    time.Time
	turn    chan struct{} // has an element while somebody uses the lane, and after the end
	ended   chan struct{} // closed at the end
	release func()        // of the limit
	timer   *time.Timer   // of the lock of conns; calls tick
	used    time.Time     // of turn: when the last transfer ended
}

func (c *conns) init(s *Server) { c.s, c.byID = s, map[string]*conn{} }

// find returns a connection of an account, or nil.
func (c *conns) find(account, id string) *conn {
	c.mu.Lock()
	defer c.mu.Unlock()
	if x := c.byID[id]; x != nil && x.peer.Account == account {
		return x
	}
	return nil
}

// ServeHTTP makes and ends RC connections: it is the handler of [PathRC]. [Server.Handler] calls it, too.
// A server that wants clients which do not sign these requests, such as elbencho's, gives it the path
// outside its signature check.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	p := s.peer(r)
	switch {
	case r.Method != http.MethodPost || r.URL.Path != PathConnect && r.URL.Path != PathDisconnect:
		http.Error(w, "s3rdma: want POST "+PathConnect+" or "+PathDisconnect, http.StatusNotFound)
	case r.URL.Path == PathDisconnect:
		if x := s.rc.find(p.Account, r.Header.Get(HeaderSession)); x != nil && x.tryTurn() {
			x.end()
		}
		w.WriteHeader(http.StatusNoContent)
	default:
		err := s.connect(p, r.Header, w.Header())
		if err == nil {
			return
		}
		status := http.StatusInternalServerError
		var d *declined
		switch {
		case errors.Is(err, ErrToken):
			status = http.StatusBadRequest
		case errors.As(err, &d) && d.reason == ReasonGID:
			status = http.StatusForbidden
		case errors.As(err, &d):
			status = http.StatusServiceUnavailable
		default:
			s.stats.declined[ReasonFailed].Add(1)
			s.opt.Logger.Warn("s3rdma: no queue pair for a client", "account", p.Account, "err", err)
		}
		http.Error(w, err.Error(), status)
	}
}

// connect makes the connection that a request asks for. The queue pair is ready before the answer, so
// that the client's first request finds it so.
func (s *Server) connect(p Peer, in, out http.Header) (err error) {
	token, err1 := ParseQPToken(cut(in.Get(HeaderToken)))
	psn, err2 := parseHex(in.Get(HeaderPSN), 24)
	if err2 == nil && psn == 0 {
		err2 = errors.New("PSN 0, want 1 to ffffff")
	}
	if err := errors.Join(err1, err2); err != nil {
		return fmt.Errorf("%w: connect: %w", ErrToken, err)
	}
	if err := s.enter(); err != nil {
		return s.decline(p, ReasonLimit, err)
	}
	defer s.running.Done()
	gid, err := s.path(p, token.GID)
	if err != nil {
		return err
	}
	c := &conn{s: s, peer: p, turn: make(chan struct{}, 1), ended: make(chan struct{}), made: time.Now()}
	c.used = c.made
	if c.release, err = s.connections.Take(p.Account, 0); err != nil {
		return s.decline(p, ReasonLimit, err)
	}
	defer func() {
		if err != nil {
			c.release()
		}
	}()
	if c.lane, err = s.newLane(verbs.RC); err != nil {
		return err
	}
	c.lane.put = c.put
	local, err := c.lane.qp.AddrOn(gid)
	if err == nil {
		c.ends = ends{local, verbs.QPAddr{QPNum: token.QPNum, PSN: uint32(psn), GID: token.GID, LID: token.LID}}
		err = c.lane.qp.Connect(local, c.ends.remote, s.opt.Fabric.connect(true)) // no remote access
	}
	if err == nil {
		err = s.rc.add(c)
	}
	if err != nil {
		return cmp.Or(c.lane.close(), err)
	}
	out.Set(HeaderReply, "200:"+QPToken{QPNum: local.QPNum, GID: local.GID, Port: uint8(local.Port), LID: local.LID}.String())
	out.Set(HeaderSession, c.id)
	out.Set(HeaderPSN, fmt.Sprintf("%06x", local.PSN))
	return nil
}

// cut returns the digits of a QPToken, behind which elbencho allows a colon and anything.
func cut(token string) string {
	if n := 2 * qpTokenSize; len(token) > n && token[n] == ':' {
		return token[:n]
	}
	return token
}

// add gives the connection a name that nobody can guess, and starts its timer.
func (c *conns) add(x *conn) error {
	var id [connIDLen / 2]byte
	rand.Read(id[:])
	x.id = hex.EncodeToString(id[:])
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.byID == nil {
		return verbs.ErrClosed
	}
	c.byID[x.id] = x
	x.timer = time.AfterFunc(min(keepAlive, c.s.opt.Limits.Idle), x.tick)
	return nil
}

// stop ends all connections, and their transfers.
func (c *conns) stop() {
	c.mu.Lock()
	all := c.byID
	c.byID = nil
	c.mu.Unlock()
	for _, x := range all {
		x.lane.kill()
	}
	for _, x := range all {
		select {
		case x.turn <- struct{}{}:
			x.end()
		case <-x.ended:
		}
	}
}

// take takes the connection's lane, and waits while another transfer has it.
func (c *conn) take(ctx context.Context) (*lane, error) {
	select {
	case c.turn <- struct{}{}:
		return c.lane, nil
	case <-c.ended:
		return nil, c.s.decline(c.peer, ReasonConnection, fmt.Errorf("RDMA connection %s has ended: connect again", c.id))
	case <-ctx.Done():
		return nil, fmt.Errorf("wait for the other transfer of RDMA connection %s: %w", c.id, context.Cause(ctx))
	}
}

func (c *conn) tryTurn() bool {
	select {
	case c.turn <- struct{}{}:
		return true
	default:
		return false
	}
}

// put ends the turn of a transfer and, after an error, the connection: its queue pair has no way back
// unless the client resets its own, too.
func (c *conn) put(broken bool, n int) error {
	if broken {
		c.lane.drain(n) // if not, close ends the requests
		return c.end()
	}
	c.used = time.Now()
	<-c.turn
	return nil
}

// end ends the connection, whose turn is held. stop finds it and waits as long as it has a queue pair.
func (c *conn) end() error {
	err := c.lane.close()
	c.release()
	rc := &c.s.rc
	rc.mu.Lock()
	delete(rc.byID, c.id)
	c.timer.Stop()
	rc.mu.Unlock()
	close(c.ended)
	return err
}

// tick ends a connection that is idle for too long, or whose client has gone.
func (c *conn) tick() {
	limit := c.s.opt.Limits.Idle
	next := min(keepAlive, limit)
	if c.tryTurn() {
		idle := time.Since(c.used)
		if idle >= limit || idle >= keepAlive && !c.alive() {
			c.end()
			return
		}
		next = min(next, limit-idle)
		<-c.turn
	}
	rc := &c.s.rc
	rc.mu.Lock()
	defer rc.mu.Unlock()
	if rc.byID[c.id] == c {
		c.timer.Reset(next)
	}
}

// alive reports whether the client's queue pair answers. A WRITE of no bytes needs no key.
func (c *conn) alive() bool {
	ctx, cancel := context.WithTimeout(context.Background(), c.s.opt.Limits.Time)
	defer cancel()
	_, err := c.lane.qp.PostSend(verbs.SendWR{Opcode: verbs.OpRDMAWrite, Flags: verbs.SendSignaled})
	if err == nil {
		err = c.lane.next(ctx)
	}
	return err == nil
}
