// Package valkeyrdma connects to valkey-server over RDMA, as a net.Conn for valkey-go, go-redis
// and other clients. It speaks the protocol of Valkey's src/rdma.c, in pure Go.
//
// Each side has a receive buffer, which it offers to the peer by a command. The peer fills it
// from the start to the end by RDMA WRITE, with the number of bytes as immediate data. When the
// reader has read it to the end, it offers it again.
//
//	      ── SEND: my buffer (address, length, key) ──►
//	      ◄── SEND: my buffer ────────────────────────
//	Write ══ RDMA WRITE with immediate: n bytes ══════► their buffer
//	Read  ◄═══════════════════════════════════════════ my buffer
//	      ── SEND: my buffer, when all of it is read ──►
//	      ◄─ SEND: keepalive, every 3 s, either way ──►
//
// WRITEs with immediate need InfiniBand or RoCE: iWARP has none.
package valkeyrdma

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"time"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/cm"
	"github.com/goverbs/verbs/uverbs"
)

const (
	bufferSize = 1 << 20         // of the receive buffer, as the server's default
	maxBuffer  = 16 << 20        // of the peer's
	depth      = 1024            // of the queues, as the server's
	keepAlive  = 3 * time.Second // as the server's
	signalled  = depth / 4       // one in so many sends has a completion

	forCommands = 16 // sends that WRITEs leave room for
)

// The commands, which have 32 bytes and start with the opcode. All numbers are big-endian.
const (
	cmdGetFeatures = 0
	cmdSetFeatures = 1
	cmdKeepAlive   = 2
	cmdMemory      = 3 // address at 16, length at 24, key at 28

	cmdSize = 32
)

// Conn is a connection. Several goroutines may call its methods. It has a goroutine of its own,
// which ends with Close.
type Conn struct {
	ep   *cm.Endpoint
	cmds *uverbs.MR // of received commands
	rx   *uverbs.MR // the peer writes to it
	done chan struct{}
	stop context.CancelFunc
	ctx  context.Context

	writing sync.Mutex // held by Write

	mu       sync.Mutex // guards what follows and the posting of sends
	changed  sync.Cond
	arrived  int        // bytes in rx
	read     int        // bytes of them that Read has returned
	tx       *uverbs.MR // a copy of the peer's buffer as far as this side has filled it
	addr     uint64     // of the peer's buffer
	key      uint32
	filled   int // bytes of the peer's buffer
	posted   int // sends since the last one with a completion
	inFlight int // sends that may not have completed
	sent     [8]verbs.WC
	err      error
	closed   bool
	deadline [2]time.Time // of reading and writing
	timers   [2]*time.Timer
	wake     context.CancelFunc // of awaitRoom, or nil
}

const (
	reading = 0
	writing = 1
)

// DialContext connects to a server's RDMA port. The network is ignored: go-redis passes it.
func DialContext(ctx context.Context, network, addr string) (net.Conn, error) {
	c := newConn()
	_, err := (&cm.Dialer{Options: c.options()}).Dial(ctx, addr)
	if err == nil {
		err = c.start()
	}
	if err != nil {
		c.stop()
		return nil, &net.OpError{Op: "dial", Net: "rdma", Err: err}
	}
	return c, nil
}

func newConn() *Conn {
	c := &Conn{done: make(chan struct{})}
	c.changed.L = &c.mu
	c.ctx, c.stop = context.WithCancel(context.Background())
	return c
}

func (c *Conn) options() cm.Options {
	return cm.Options{Setup: c.setUp, Cap: verbs.QPCap{MaxSendWR: depth, MaxRecvWR: depth, MaxSendSGE: 1, MaxRecvSGE: 1, MaxInline: cmdSize}}
}

// start starts the protocol on a connection that is up.
func (c *Conn) start() error {
	go c.receive()
	err := c.offer()
	if err != nil {
		c.Close()
	}
	return err
}

// setUp makes the memory and posts the receives before the server can send.
func (c *Conn) setUp(e *cm.Endpoint) (err error) {
	c.ep = e
	if c.cmds, err = e.AllocMR(depth*cmdSize, verbs.AccessLocalWrite); err != nil {
		return err
	}
	if c.rx, err = e.AllocMR(bufferSize, verbs.AccessLocalWrite|verbs.AccessRemoteWrite); err != nil {
		return err
	}
	for i := range depth {
		if err := c.postRecv(i); err != nil {
			return err
		}
	}
	return nil
}

func (c *Conn) postRecv(slot int) error {
	_, err := c.ep.QP.PostRecv(verbs.RecvWR{ID: uint64(slot), SGL: []verbs.SGE{c.cmds.SGE(slot*cmdSize, cmdSize)}})
	return err
}

// offer offers the receive buffer to the peer.
func (c *Conn) offer() error {
	var cmd [cmdSize]byte
	binary.BigEndian.PutUint16(cmd[:], cmdMemory)
	binary.BigEndian.PutUint64(cmd[16:], c.rx.Addr())
	binary.BigEndian.PutUint32(cmd[24:], uint32(c.rx.Len()))
	binary.BigEndian.PutUint32(cmd[28:], c.rx.RKey())
	c.mu.Lock()
	defer c.mu.Unlock()
	c.arrived, c.read = 0, 0
	return c.post(verbs.SendWR{Opcode: verbs.OpSend, Inline: cmd[:]})
}

// post posts a send. The caller holds mu.
func (c *Conn) post(wr verbs.SendWR) error {
	if err := c.reclaim(c.sent[:c.ep.SendCQ.Poll(c.sent[:])]); err != nil {
		return err
	}
	if c.posted++; c.posted >= signalled || wr.Flags&verbs.SendSignaled != 0 {
		wr.Flags |= verbs.SendSignaled
		wr.ID, c.posted = uint64(c.posted), 0
	}
	c.inFlight++
	_, err := c.ep.QP.PostSend(wr)
	return err
}

// reclaim counts completed sends. The caller holds mu.
func (c *Conn) reclaim(wcs []verbs.WC) error {
	for i := range wcs {
		if err := cm.SendError(&wcs[i]); err != nil {
			return err
		}
		c.inFlight -= int(wcs[i].ID)
	}
	if len(wcs) > 0 && c.wake != nil {
		c.wake() // awaitRoom, which may wait for the completion that is taken here
	}
	return nil
}

// awaitRoom waits until the send queue has room for a WRITE, besides that for commands. The
// caller holds mu, which awaitRoom releases while it waits, and writing.
func (c *Conn) awaitRoom() error {
	for c.inFlight >= depth-forCommands {
		if d := c.deadline[writing]; !d.IsZero() && !time.Now().Before(d) {
			return os.ErrDeadlineExceeded
		}
		ctx, cancel := context.WithCancel(c.ctx)
		c.wake = cancel
		c.mu.Unlock()
		var wcs [8]verbs.WC
		n, err := c.ep.SendCQ.PollWait(ctx, wcs[:])
		woken := err != nil && ctx.Err() != nil && c.ctx.Err() == nil
		cancel()
		c.mu.Lock()
		if c.closed {
			return net.ErrClosed
		}
		if woken { // for the deadline
			continue
		}
		if err != nil {
			return err
		}
		if err := c.reclaim(wcs[:n]); err != nil {
			return err
		}
	}
	return nil
}

// receive handles what arrives until the connection ends.
func (c *Conn) receive() {
	defer close(c.done)
	err := c.receiveAll()
	if errors.Is(err, verbs.WCFlushErr) {
		select {
		case <-c.ep.Done():
		case <-c.ctx.Done():
		case <-time.After(time.Second): // only the queue pair has failed
		}
	}
	if errors.Is(c.ep.Err(), verbs.ErrDisconnected) {
		err = io.EOF
	}
	c.fail(err)
}

func (c *Conn) fail(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.err = cmp.Or(c.err, err)
	c.changed.Broadcast()
}

func (c *Conn) receiveAll() error {
	var wcs [64]verbs.WC
	for {
		ctx, cancel := context.WithTimeout(c.ctx, keepAlive)
		n, err := c.ep.RecvCQ.PollWait(ctx, wcs[:])
		cancel()
		if errors.Is(err, context.DeadlineExceeded) {
			c.mu.Lock()
			err = c.post(keepAliveWR())
			c.mu.Unlock()
		}
		for i := 0; i < n && err == nil; i++ {
			err = c.handle(&wcs[i])
		}
		if err != nil {
			return err
		}
	}
}

func keepAliveWR() verbs.SendWR {
	var cmd [cmdSize]byte
	binary.BigEndian.PutUint16(cmd[:], cmdKeepAlive)
	return verbs.SendWR{Opcode: verbs.OpSend, Inline: cmd[:]}
}

// errProtocol is returned when the server breaks the protocol.
var errProtocol = errors.New("protocol violation by the server")

// handle handles a completed receive.
func (c *Conn) handle(wc *verbs.WC) error {
	if err := wc.Err(); err != nil {
		return err
	}
	var err error
	if wc.Opcode == verbs.WCRecvRDMAImm {
		err = c.handleData(int(wc.Imm()))
	} else {
		err = c.handleCommand(c.cmds.Bytes()[wc.ID*cmdSize:][:wc.ByteLen])
	}
	if err != nil {
		return err
	}
	return c.postRecv(int(wc.ID))
}

func (c *Conn) handleData(n int) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if n > c.rx.Len()-c.arrived {
		return fmt.Errorf("%w: %d bytes in a buffer with room for %d", errProtocol, n, c.rx.Len()-c.arrived)
	}
	c.arrived += n
	c.changed.Broadcast()
	return nil
}

func (c *Conn) handleCommand(cmd []byte) error {
	if len(cmd) != cmdSize {
		return fmt.Errorf("%w: command of %d bytes", errProtocol, len(cmd))
	}
	switch op := binary.BigEndian.Uint16(cmd); op {
	case cmdGetFeatures, cmdSetFeatures, cmdKeepAlive:
		return nil
	case cmdMemory:
		return c.handleMemory(binary.BigEndian.Uint64(cmd[16:]), binary.BigEndian.Uint32(cmd[24:]), binary.BigEndian.Uint32(cmd[28:]))
	default:
		return fmt.Errorf("%w: command %d", errProtocol, op)
	}
}

// handleMemory takes the peer's empty buffer. The peer has all data that was written to it, so
// the copy is free.
func (c *Conn) handleMemory(addr uint64, size, key uint32) (err error) {
	if size == 0 || size > maxBuffer {
		return fmt.Errorf("%w: buffer of %d bytes", errProtocol, size)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.tx == nil || c.tx.Len() != int(size) {
		if c.tx != nil {
			c.tx.Close()
		}
		if c.tx, err = c.ep.AllocMR(int(size), 0); err != nil {
			return err
		}
	}
	c.addr, c.key, c.filled = addr, key, 0
	c.changed.Broadcast()
	return nil
}

// wait waits until ready, and fails when the connection or the deadline has ended. The caller
// holds mu.
func (c *Conn) wait(op int, ready func() bool) error {
	for {
		switch {
		case c.closed:
			return net.ErrClosed
		case !c.deadline[op].IsZero() && !time.Now().Before(c.deadline[op]):
			return os.ErrDeadlineExceeded
		case ready():
			return nil
		case c.err != nil:
			return c.err
		}
		c.changed.Wait()
	}
}

func (c *Conn) wrap(op string, err error) error {
	if err == nil || err == io.EOF {
		return err
	}
	return &net.OpError{Op: op, Net: "rdma", Source: c.LocalAddr(), Addr: c.RemoteAddr(), Err: err}
}

// Read implements [net.Conn].
func (c *Conn) Read(b []byte) (n int, err error) {
	c.mu.Lock()
	err = c.wait(reading, func() bool { return c.read < c.arrived || len(b) == 0 })
	full := false
	if err == nil {
		n = copy(b, c.rx.Bytes()[c.read:c.arrived])
		c.read += n
		full = n > 0 && c.read == c.rx.Len()
	}
	c.mu.Unlock()
	if full { // this call has read the last byte, so no other comes here
		if err := c.offer(); err != nil {
			c.fail(err)
		}
	}
	return n, c.wrap("read", err)
}

// Write implements [net.Conn].
func (c *Conn) Write(b []byte) (n int, err error) {
	c.writing.Lock()
	defer c.writing.Unlock()
	for first := true; err == nil && (first || n < len(b)); first = false {
		var sent int
		sent, err = c.writeSome(b[n:])
		n += sent
	}
	if err == io.EOF {
		err = verbs.ErrDisconnected
	}
	return n, c.wrap("write", err)
}

// writeSome writes as much as the peer's buffer has room for, after waiting until it has some.
func (c *Conn) writeSome(b []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := c.wait(writing, func() bool { return c.err == nil && c.tx != nil && (c.filled < c.tx.Len() || len(b) == 0) }); err != nil || len(b) == 0 {
		return 0, err
	}
	if err := c.awaitRoom(); err != nil {
		return 0, err
	}
	n := copy(c.tx.Bytes()[c.filled:], b)
	err := c.post(verbs.SendWR{
		Opcode: verbs.OpRDMAWriteImm, Imm: uint32(n), RemoteAddr: c.addr + uint64(c.filled), RKey: c.key,
		SGL: []verbs.SGE{c.tx.SGE(c.filled, n)},
	})
	if err != nil {
		return 0, err
	}
	c.filled += n
	return n, nil
}

// LocalAddr and RemoteAddr implement [net.Conn]. The addresses are [cm.Addr].
func (c *Conn) LocalAddr() net.Addr  { return c.ep.LocalAddr() }
func (c *Conn) RemoteAddr() net.Addr { return c.ep.RemoteAddr() }

// SetDeadline and its two parts, SetReadDeadline and SetWriteDeadline, implement [net.Conn].
func (c *Conn) SetDeadline(t time.Time) error      { return c.setDeadline(t, reading, writing) }
func (c *Conn) SetReadDeadline(t time.Time) error  { return c.setDeadline(t, reading) }
func (c *Conn) SetWriteDeadline(t time.Time) error { return c.setDeadline(t, writing) }

func (c *Conn) setDeadline(t time.Time, ops ...int) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return c.wrap("set", net.ErrClosed)
	}
	for _, op := range ops {
		c.deadline[op] = t
		if c.timers[op] != nil {
			c.timers[op].Stop()
			c.timers[op] = nil
		}
		if !t.IsZero() {
			c.timers[op] = time.AfterFunc(time.Until(t), func() {
				c.mu.Lock()
				defer c.mu.Unlock()
				c.wakeAll()
			})
		}
	}
	c.wakeAll()
	return nil
}

// wakeAll makes all calls that wait look at their deadline. The caller holds mu.
func (c *Conn) wakeAll() {
	c.changed.Broadcast()
	if c.wake != nil {
		c.wake()
	}
}

// Close waits, for a second at most, until the peer has all data, and ends the connection.
func (c *Conn) Close() error {
	c.mu.Lock()
	wasClosed := c.closed
	c.closed = true
	for _, t := range c.timers {
		if t != nil {
			t.Stop()
		}
	}
	c.changed.Broadcast()
	c.mu.Unlock()
	if wasClosed {
		return c.wrap("close", net.ErrClosed)
	}
	c.flush()
	c.stop()
	<-c.done
	c.writing.Lock() // the memory must not be in use
	defer c.writing.Unlock()
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.wrap("close", c.ep.Close())
}

// flush waits until all sends have completed.
func (c *Conn) flush() {
	c.mu.Lock()
	defer c.mu.Unlock()
	last := keepAliveWR()
	last.Flags = verbs.SendSignaled
	err := c.err
	if err == nil {
		err = c.post(last)
	}
	for end := time.Now().Add(time.Second); err == nil && c.inFlight > 0 && time.Now().Before(end); {
		c.mu.Unlock()
		time.Sleep(20 * time.Microsecond)
		c.mu.Lock()
		err = c.reclaim(c.sent[:c.ep.SendCQ.Poll(c.sent[:])])
	}
}

var _ net.Conn = (*Conn)(nil)
