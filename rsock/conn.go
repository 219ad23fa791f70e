package rsock

import (
	"cmp"
	"errors"
	"log/slog"
	"net"
	"sync"
	"syscall"
	"time"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/cm"
	"github.com/goverbs/verbs/uverbs"
)

// Conn is a connection by RDMA. It is a [net.Conn], and all its methods may be called by
// several goroutines. The caller must close it: nothing is released before, and what
// calls under way still use is released when they return.
type Conn struct {
	log      *slog.Logger
	listener *Listener // that Accept returned it from

	ep     *cm.Endpoint
	qp     *uverbs.QP
	recvCQ *uverbs.CQ
	sendCQ *uverbs.CQ
	events *uverbs.CompChannel
	local  net.Addr
	remote net.Addr
	opt    Options
	iwarp  bool // no immediates: messages are SENDs
	peer   hello

	rmu sync.Mutex // held through a Read
	wmu sync.Mutex // held through a Write
	cmu sync.Mutex // held through a CloseRead, CloseWrite or Close

	// pmu is held while data is posted, which then precedes SHUTDOWN and
	// DISCONNECT, and guards tx. It is locked before mu.
	pmu sync.Mutex
	tx  poster

	mu        sync.Mutex // guards the rest; held only for moments
	users     int        // calls under way: memory is not released under them
	closed    bool       // Close was called
	readEnd   bool       // CloseRead was called
	writeEnd  bool       // CloseWrite was called
	eof       bool       // the peer writes no more
	gone      bool       // neither does it read: it is over
	broken    bool       // it cannot be trusted
	err       error      // what ended the connection otherwise
	unlogged  bool       // err is to be logged
	linger    time.Duration
	in        inbound
	out       outbound
	ctl       control
	rd, wr    waiter // of Read and of Write
	cl        waiter // of Close
	sleeper   *waiter
	recvArmed bool
	sendArmed bool
	waits     waits
	probe     *time.Timer // sends keepalives
	period    time.Duration
	wcs       [16]verbs.WC
	reaped    [16]verbs.WC
	recvs     [16]verbs.RecvWR
	recvSGEs  [16]verbs.SGE
}

// inbound is the receive ring, and what was offered of it to the peer. Counts are of
// bytes since the start.
type inbound struct {
	ring     []byte
	slots    []byte // iWARP's messages, 4 bytes for each receive
	slot     int    // the next receive to post
	posted   int    // how many there are
	reading  bool   // a call copies from the ring
	heard    bool   // a message has come
	received uint64
	consumed uint64
	offered  uint64
	messages uint64
	seq      uint16 // messages received
	limit    uint16 // up to which they may come
}

// memory makes the rings, smaller ones if there is no memory for those.
func (c *Conn) memory(e *cm.Endpoint) error {
	remote, local, err := c.regions(e)
	for errors.Is(err, syscall.ENOMEM) && c.opt.halve() {
		logTo(c.log, slog.LevelInfo, "halved buffers", "remote", e.RemoteAddr(),
			"read_buffer", c.opt.ReadBuffer, "write_buffer", c.opt.WriteBuffer, "err", err)
		remote, local, err = c.regions(e)
	}
	if err != nil {
		return err
	}
	c.out.inline = make([]byte, c.opt.Inline)
	half := c.opt.ReadBuffer / 2
	c.in.ring, c.out.table = remote.Bytes()[:c.opt.ReadBuffer], remote.Bytes()[c.opt.ReadBuffer:]
	c.out.ring, c.in.slots = local.Bytes()[:c.opt.WriteBuffer], local.Bytes()[c.opt.WriteBuffer:]
	c.tx.sge = local.SGE(0, c.opt.WriteBuffer)
	for i := range c.recvs {
		if c.iwarp {
			c.recvs[i].SGL = c.recvSGEs[i : i+1]
			c.recvSGEs[i] = local.SGE(c.opt.WriteBuffer, 4)
		}
	}
	c.ctl.ring = sge{addr: remote.Addr(), key: remote.RKey(), length: uint32(half)}
	c.in.offered = uint64(half)
	c.in.limit = uint16(c.opt.RecvQueue)
	return nil
}

// regions makes what the peer writes to, and what is only this side's.
func (c *Conn) regions(e *cm.Endpoint) (remote, local *uverbs.MR, err error) {
	remote, err = e.AllocMR(c.opt.ReadBuffer+sgeCount*sgeSize, verbs.AccessLocalWrite|verbs.AccessRemoteWrite)
	if err != nil {
		return nil, nil, err
	}
	slots := 0
	if c.iwarp {
		slots = 4 * c.in.posted
	}
	if local, err = e.AllocMR(c.opt.WriteBuffer+slots, verbs.AccessLocalWrite); err != nil {
		return nil, nil, cmp.Or(remote.Close(), err)
	}
	return remote, local, nil
}

// newConn is a connection yet to be made, with the options that make it.
func newConn(opt Options, log *slog.Logger) (*Conn, cm.Options, error) {
	opt, err := opt.withDefaults()
	if err != nil {
		return nil, cm.Options{}, err
	}
	c := &Conn{opt: opt, log: log, linger: linger}
	c.in.posted = c.opt.RecvQueue + spare
	private := make([]byte, helloSize)
	return c, cm.Options{
		PrivateData:        private,
		Logger:             log,
		ResponderResources: -1, InitiatorDepth: -1,
		Cap: verbs.QPCap{
			MaxSendWR: c.opt.SendQueue, MaxRecvWR: c.in.posted,
			MaxSendSGE: 1, MaxRecvSGE: 1, MaxInline: max(c.opt.Inline, sgeSize),
		},
		Setup: func(e *cm.Endpoint) error { return c.setup(e, private) },
	}, nil
}

// setup makes what must be ready before the peer can send.
func (c *Conn) setup(e *cm.Endpoint, private []byte) error {
	c.ep, c.qp, c.recvCQ, c.sendCQ = e, e.QP, e.RecvCQ, e.SendCQ
	c.events = e.RecvCQ.Channel()
	c.iwarp = e.PD.Context().Device().IWARP()
	if err := c.memory(e); err != nil {
		return err
	}
	for left := c.in.posted; left > 0; {
		n := min(left, len(c.recvs))
		if err := c.postRecvs(n); err != nil {
			return err
		}
		left -= n
	}
	h := hello{
		bigEndian: bigEndianHost, credits: uint16(c.opt.RecvQueue), buffer: c.ctl.ring,
		sgl: sge{addr: c.ctl.ring.addr + uint64(c.opt.ReadBuffer), key: c.ctl.ring.key, length: sgeCount},
	}
	h.put(private)
	return nil
}

// connected starts the connection when the peer's hello is known. l is nil for a dial.
func (c *Conn) connected(peer hello, l *Listener) {
	c.peer = peer
	c.local, c.remote = c.ep.LocalAddr(), c.ep.RemoteAddr()
	c.out.start(c)
	c.ctl.start(c)
	c.rd.start()
	c.wr.start()
	c.cl.start()
	// Over iWARP the first message is the dialing side's (RFC 5044, 7.1.1): the
	// endpoint holds this side's back until that has come, or for a limited time.
	c.in.heard = !c.iwarp || l == nil
	c.mu.Lock()
	c.keepAlive(c.opt.KeepAlive)
	c.grant() // the second half of the ring
	c.mu.Unlock()
	if c.log != nil {
		msg := "connected"
		if l != nil {
			msg = "accepted"
		}
		logTo(c.log, slog.LevelDebug, msg, "device", c.ep.PD.Context().Device().Name, "local", c.local, "remote", c.remote,
			"read_buffer", c.opt.ReadBuffer, "write_buffer", c.opt.WriteBuffer)
	}
}

// LocalAddr returns the address of this end, of type [cm.Addr].
func (c *Conn) LocalAddr() net.Addr { return c.local }

// RemoteAddr returns the address of the peer's end, of type [cm.Addr].
func (c *Conn) RemoteAddr() net.Addr { return c.remote }

// enter begins a call: mu is held, and memory stays, until leave.
func (c *Conn) enter() error {
	c.mu.Lock()
	if c.closed {
		c.mu.Unlock()
		return net.ErrClosed
	}
	c.users++
	return nil
}

// leave ends a call; the last one out of a closed connection releases it.
func (c *Conn) leave() error {
	c.users--
	last := c.closed && c.users == 0
	failed := c.unlogged
	c.unlogged = false
	c.mu.Unlock()
	if failed {
		c.logEnd(c.err)
	}
	if !last {
		return nil
	}
	err := c.ep.Close()
	if c.listener != nil {
		c.listener.count(func(s *ListenerStats) { s.Open-- })
	}
	if c.log != nil {
		logTo(c.log, slog.LevelDebug, "connection closed", "local", c.local, "remote", c.remote,
			"received", c.in.received, "sent", c.out.sent, "err", c.err)
	}
	return err
}

var _ net.Conn = (*Conn)(nil)
