package rsock

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"net"
	"sync"
	"syscall"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/cm"
	"github.com/goverbs/verbs/internal/event"
	"github.com/goverbs/verbs/internal/spin"
	"github.com/goverbs/verbs/uverbs"
)

// Conn is an RDMA connection. It is a [net.Conn], and all its methods may be called by several
// goroutines. The caller must close it, which releases its memory, after running calls have
// returned.
type Conn struct {
	log        *slog.Logger
	tally      *tally // of its Dialer or Listener; nil before Accept; guarded by mu
	ep         *cm.Endpoint
	qp         *uverbs.QP
	localAddr  net.Addr
	remoteAddr net.Addr
	opt        Options
	iwarp      bool  // no immediates: messages are SENDs
	hello      hello // the peer's

	// A call takes the lock of its kind, in closer, reader or writer, then mu.
	mu sync.Mutex // guards the rest; held only briefly
	life
	reader  reader
	writer  writer
	closer  closer
	control control

	group event.Group // sleeps in source{Conn}
	waits waits
}

// allocRings allocates the rings, and smaller ones if memory is short.
func (c *Conn) allocRings(e *cm.Endpoint) error {
	remote, local, err := c.allocMRs(e)
	for errors.Is(err, syscall.ENOMEM) && c.opt.halve() {
		c.log.Info("halved buffers", "remote", e.RemoteAddr(),
			"read_buffer", c.opt.ReadBuffer, "write_buffer", c.opt.WriteBuffer, "err", err)
		remote, local, err = c.allocMRs(e)
	}
	if err != nil {
		return err
	}
	in := remote.Bytes()
	size := len(in) - sgeCount*sgeSize
	c.reader.ring = recvRing{buf: in[:size], offered: uint64(size / 2), limit: uint16(c.opt.RecvQueue)}
	c.writer.targets.table = in[size:]
	c.writer.ring = sendRing{inline: make([]byte, c.opt.Inline)}
	c.writer.ring.use(local)
	c.control.offer = sge{addr: remote.Addr(), key: remote.RKey(), length: uint32(size / 2)}
	// The hello offers half 0 of the ring, the peer's target 0; the first offer is half 1, in entry
	// 1.
	c.control.next, c.control.half = 1, 1
	return nil
}

// allocMRs allocates the region that the peer writes to, and one for this side only: a key gives
// access to its whole region, so the peer's has only the ring and the table of descriptors.
func (c *Conn) allocMRs(e *cm.Endpoint) (remote, local *uverbs.MR, err error) {
	// A small ring and the table share pages.
	idle := c.opt.IdleBuffer
	remote, err = e.AllocMR(min(c.opt.ReadBuffer+sgeCount*sgeSize, idle), verbs.AccessLocalWrite|verbs.AccessRemoteWrite)
	if err != nil {
		return nil, nil, err
	}
	if local, err = e.AllocMR(min(c.opt.WriteBuffer, idle), verbs.AccessLocalWrite); err != nil {
		return nil, nil, cmp.Or(remote.Close(), err)
	}
	return remote, local, nil
}

// makeConn returns a Conn without an endpoint.
func makeConn(opt Options) *Conn {
	c := &Conn{opt: opt}
	c.reader.c, c.writer.c, c.closer.c, c.control.c = c, c, c, c
	c.reader.queue.size = opt.RecvQueue + spareRecvs
	c.closer.setLinger(cmp.Or(opt.Linger, linger))
	return c
}

// newConn returns a Conn that is not connected yet, and the options to connect it with.
func newConn(opt Options, log *slog.Logger) (*Conn, cm.Options, error) {
	opt, err := opt.withDefaults()
	if err != nil {
		return nil, cm.Options{}, err
	}
	c := makeConn(opt)
	c.log = logger(log)
	private := make([]byte, helloSize)
	return c, cm.Options{
		PrivateData:        private,
		Logger:             log,
		RetryCount:         opt.RetryCount,
		ResponderResources: -1, InitiatorDepth: -1,
		Cap: verbs.QPCap{
			MaxSendWR: c.opt.SendQueue, MaxRecvWR: c.reader.queue.size,
			MaxSendSGE: 1, MaxRecvSGE: 1, MaxInline: max(c.opt.Inline, sgeSize),
		},
		Setup: func(e *cm.Endpoint) error { return c.setup(e, private) },
	}, nil
}

// setup makes the rings and posts the receives that the peer needs before it can send.
func (c *Conn) setup(e *cm.Endpoint, private []byte) error {
	c.ep, c.qp, c.reader.cq, c.writer.cq = e, e.QP, e.RecvCQ, e.SendCQ
	d := e.PD.Context().Device()
	c.iwarp = d.IWARP()
	c.opt.SpinTime = max(cmp.Or(c.opt.SpinTime, spin.Limit(d.Node, defaultSpin)), 0)
	if err := c.allocRings(e); err != nil {
		return err
	}
	q := &c.reader.queue
	if c.iwarp {
		mr, err := e.AllocMR(messageSize*q.size, verbs.AccessLocalWrite)
		if err != nil {
			return err
		}
		q.init(mr)
	}
	for left := q.size; left > 0; left -= len(q.wrs) {
		if err := q.post(c.qp, min(left, len(q.wrs))); err != nil {
			return err
		}
	}
	offer := c.control.offer
	h := hello{
		bigEndian: bigEndianHost, credits: uint16(c.opt.RecvQueue), buffer: offer,
		sgl: sge{addr: offer.addr + uint64(len(c.reader.ring.buf)), key: offer.key, length: sgeCount},
	}
	h.put(private)
	return nil
}

// connected starts the connection when the peer's hello is known. l is nil for a dial.
func (c *Conn) connected(peer hello, l *Listener) {
	c.hello = peer
	c.localAddr, c.remoteAddr = net.TCPAddrFromAddrPort(c.ep.LocalAddr().AddrPort), net.TCPAddrFromAddrPort(c.ep.RemoteAddr().AddrPort)
	c.writer.start(peer)
	c.group.Init(source{c})
	for _, w := range c.waiters() {
		w.start(c)
	}
	// Over iWARP the dialing side sends the first message (RFC 5044, 7.1.2): the endpoint delays
	// this side's data until it has arrived, or for a limited time. Credits can wait for it, as the
	// peer begins with the credits of the hello.
	c.control.mayGrant = !c.iwarp || l == nil
	c.mu.Lock()
	c.control.startProbes(c.opt.KeepAlive)
	c.control.grant() // the second half of the ring
	c.mu.Unlock()
	c.ep.Describe(c.describe)
	msg := "connected"
	if l != nil {
		msg = "accepted"
	}
	c.log.Debug(msg, "device", c.ep.PD.Context().Device().Name, "local", c.localAddr, "remote", c.remoteAddr,
		"read_buffer", c.opt.ReadBuffer, "write_buffer", c.opt.WriteBuffer)
}

// LocalAddr returns the address of this end, a [*net.TCPAddr]: programs take IP and port from that
// type, for example for limits per client. The type of a [net.Conn], and the Net of a
// [net.OpError], tell whether it is RDMA.
func (c *Conn) LocalAddr() net.Addr { return c.localAddr }

// RemoteAddr returns the address of the peer's end, a [*net.TCPAddr].
func (c *Conn) RemoteAddr() net.Addr { return c.remoteAddr }

// QPNum returns the number of the connection's queue pair, its name in counters, captures and the
// command "verbs res qp".
func (c *Conn) QPNum() uint32 { return c.qp.Num() }

// Device returns the device that carries the connection.
func (c *Conn) Device() uverbs.Device { return c.ep.PD.Context().Device() }

// enter starts a call: it locks kind, unless that is nil, and mu. Memory is not released
// until leave, which unlocks both.
func (c *Conn) enter(kind *sync.Mutex) error {
	if kind != nil {
		kind.Lock()
	}
	c.mu.Lock()
	if c.begin() {
		return nil
	}
	c.mu.Unlock()
	if kind != nil {
		kind.Unlock()
	}
	return net.ErrClosed
}

// leave ends a call. The last call of a closed connection releases it.
func (c *Conn) leave(kind *sync.Mutex) error {
	last, failed := c.end()
	counted := c.tally
	if last && c.err == nil { // the device no longer uses the memory
		c.writer.ring.freed, c.writer.signals.done, c.control.used = c.writer.ring.head, c.writer.signals.posted, 0
	}
	c.mu.Unlock()
	if kind != nil {
		kind.Unlock()
	}
	if failed != nil {
		c.logFailure(failed)
	}
	if !last {
		return nil
	}
	err := c.ep.Close()
	counted.Remove(c, c.Stats())
	c.log.Debug("connection closed", "local", c.localAddr, "remote", c.remoteAddr,
		"received", c.reader.ring.received, "sent", c.writer.sent, "err", c.err)
	return err
}

// count lets a Dialer or Listener count the connection.
func (c *Conn) count(t *tally) {
	c.mu.Lock()
	c.tally = t
	c.mu.Unlock()
	t.Add(c)
}

// fail ends the connection. Later calls fail with the first err. The caller holds mu.
func (c *Conn) fail(err error) {
	if c.life.fail(err) {
		c.disconnect()
		c.group.SignalAll()
	}
}

// disconnect ends the connection below without waiting for it: that runs commands and logs, and the
// handler of a logger may use connections. The caller holds mu.
func (c *Conn) disconnect() { go c.ep.Disconnect() }

// unlocked calls f, which may make system calls, without mu. The caller holds mu.
func (c *Conn) unlocked(f func()) {
	c.mu.Unlock()
	defer c.mu.Lock()
	f()
}

// set calls change, which changes a setting.
func (c *Conn) set(change func()) error {
	if err := c.enter(nil); err != nil {
		return c.wrap("set", err)
	}
	change()
	return c.wrap("set", c.leave(nil))
}

// logger returns l, or a logger that discards everything if l is nil. No lock may be held
// while logging: a handler may use connections.
func logger(l *slog.Logger) *slog.Logger { return cmp.Or(l, discardLogger) }

var discardLogger = slog.New(slog.DiscardHandler)

func (c *Conn) logFailure(err error) {
	level := slog.LevelDebug
	if errors.Is(err, ErrProtocol) {
		level = slog.LevelWarn
	}
	c.log.Log(context.Background(), level, "connection failed", "local", c.ep.LocalAddr(), "remote", c.ep.RemoteAddr(), "err", err)
}

var _ net.Conn = (*Conn)(nil)
