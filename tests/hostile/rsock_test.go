package hostile

import (
	"context"
	"encoding/binary"
	"io"
	"os"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/goverbs/verbs/internal/labtest"
	"github.com/goverbs/verbs/rsock"
)

// rsockSGE is a descriptor of rsockets.
type rsockSGE struct {
	addr        uint64
	key, length uint32
}

func (s rsockSGE) append(b []byte, order binary.AppendByteOrder) []byte {
	return order.AppendUint32(order.AppendUint32(order.AppendUint64(b, s.addr), s.key), s.length)
}

// connectData is the private data of rsockets (librdmacm's rs_conn_data).
type connectData struct {
	version, flags, iomap byte
	credits               uint16
	table, ring           rsockSGE
	short                 int // bytes that are missing
}

func (d connectData) bytes() []byte {
	b := binary.BigEndian.AppendUint16([]byte{d.version, d.flags}, d.credits)
	b = append(b, 0, 0, 0, d.iomap)
	b = d.ring.append(d.table.append(b, binary.BigEndian), binary.BigEndian)
	return b[:len(b)-d.short]
}

// connectDataWith returns a function that makes a peer's private data, with a change.
func connectDataWith(change func(*connectData)) func(p *peer) []byte {
	return func(p *peer) []byte {
		d := connectData{
			version: 1, flags: 2, credits: 16,
			table: rsockSGE{p.mem.Addr() + tableAt, p.mem.RKey(), 2},
			ring:  rsockSGE{p.mem.Addr() + ringAt, p.mem.RKey(), ringHalf},
		}
		change(&d)
		return d.bytes()
	}
}

// victimBuffers returns the ring and table that the victim has sent.
func (p *peer) victimBuffers() (table, ring rsockSGE) {
	b := p.PrivateData
	get := func(b []byte) rsockSGE {
		return rsockSGE{binary.BigEndian.Uint64(b), binary.BigEndian.Uint32(b[8:]), binary.BigEndian.Uint32(b[12:])}
	}
	return get(b[8:]), get(b[24:])
}

const (
	rsockBuffer  = 16 << 10
	rsockCredits = 64
	rsockBacklog = 16

	opSGL, opIOMap, opCtrl = 4 << 29, 6 << 29, 7 << 29
)

// sendData writes bytes to the start of the victim's ring, and announces them.
func (p *peer) sendData(b []byte) bool {
	_, ring := p.victimBuffers()
	return p.write(ring.addr, ring.key, b) && p.sendRsockMsg(uint32(len(b)))
}

// sendDescriptor writes a descriptor to the victim's table, and announces it.
func (p *peer) sendDescriptor(s rsockSGE) bool {
	table, _ := p.victimBuffers()
	return p.write(table.addr+16, table.key, s.append(nil, binary.NativeEndian)) && p.sendRsockMsg(opSGL|16)
}

func testData(n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(i*31 + i>>8)
	}
	return b
}

func serveRsock(t *testing.T, s *server) {
	conf := rsock.ListenConfig{
		Options: rsock.Options{ReadBuffer: rsockBuffer, WriteBuffer: rsockBuffer, SendQueue: 32, RecvQueue: rsockCredits},
		Backlog: rsockBacklog, HandshakeTimeout: s.handshakeTimeout,
	}
	l := labtest.Must(conf.Listen(t.Context(), "rdma", labtest.AddrOf(s.device)+":0"))(t)
	s.addr = l.Addr().String()
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			s.addConn(c.RemoteAddr().String(), c)
			wg.Go(func() { s.report(c.RemoteAddr().String(), echoRsock(c.(*rsock.Conn))) })
		}
	})
	t.Cleanup(func() { l.Close(); wg.Wait() })
}

// echoRsock echoes a client's data until the connection ends.
func echoRsock(c *rsock.Conn) error {
	defer c.Close()
	defer c.SetLinger(0)
	for b := make([]byte, rsockBuffer); ; {
		n, err := c.Read(b)
		if err == io.EOF {
			return nil
		}
		if err == nil {
			c.SetWriteDeadline(time.Now().Add(time.Second))
			_, err = c.Write(b[:n])
		}
		if err != nil {
			return err
		}
	}
}

func dialRsock(ctx context.Context, addr string) (client, error) {
	c, err := new(rsock.Dialer).DialContext(ctx, "rdma", addr)
	if err != nil {
		return client{}, err
	}
	return client{end: c.Close, echo: func(b []byte) ([]byte, error) {
		c.SetDeadline(time.Now().Add(waitTimeout))
		if _, err := c.Write(b); err != nil {
			return nil, err
		}
		got := make([]byte, len(b))
		_, err := io.ReadFull(c, got)
		return got, err
	}}, nil
}

var errsReset = []error{syscall.ECONNRESET}
var errsProtocol = []error{rsock.ErrProtocol}

func connectDataAttack(name string, change func(*connectData)) attack {
	return attack{name: name, private: connectDataWith(change), want: []error{errRefused}}
}

// connectDataWriteAttack returns an attack that fails only when the victim writes.
func connectDataWriteAttack(name string, change func(*connectData)) attack {
	return attack{name: name, private: connectDataWith(change), do: func(p *peer) { p.sendData(testData(100)) }, want: errsReset}
}

func rsockMsgAttack(name string, m uint32) attack {
	return attack{name: name, do: func(p *peer) { p.sendRsockMsg(m) }, want: errsProtocol}
}

func descriptorAttack(name string, s func(p *peer) rsockSGE) attack {
	return attack{name: name, want: errsReset, do: func(p *peer) {
		p.sendDescriptor(s(p))
		p.sendData(testData(ringHalf)) // fills the half of the ring that was offered first
		labtest.Until(p.t, "the other half to be offered", func() bool { return p.returnedHalves() > 0 || p.ended() })
		_, ring := p.victimBuffers()
		p.write(ring.addr+rsockBuffer/2, ring.key, testData(100))
		p.sendRsockMsg(100)
	}}
}

var rsockAttacks = []attack{
	connectDataAttack("version 0", func(d *connectData) { d.version = 0 }),
	connectDataAttack("version 2", func(d *connectData) { d.version = 2 }),
	connectDataAttack("no credits", func(d *connectData) { d.credits = 0 }),
	connectDataAttack("table of nothing", func(d *connectData) { d.table.length = 0 }),
	connectDataAttack("table of one", func(d *connectData) { d.table.length = 1 }),
	connectDataAttack("table around the end of memory", func(d *connectData) { d.table.addr = ^uint64(0) - 16 }),
	connectDataAttack("endless table", func(d *connectData) { d.table.addr, d.table.length = ^uint64(0)-1<<35, ^uint32(0) }),
	connectDataAttack("ring of nothing", func(d *connectData) { d.ring.length = 0 }),
	connectDataAttack("ring around the end of memory", func(d *connectData) { d.ring.addr = ^uint64(0) - 100 }),
	{name: "a byte less than it takes", private: connectDataWith(func(d *connectData) { d.short = 1 }), want: []error{errRefused}, iwarp: true}, // RoCE pads
	{name: "unknown flags", private: connectDataWith(func(d *connectData) { d.flags, d.iomap = 0xfe, 0xff }), want: []error{errStaysOpen}, do: expectRsockEcho},
	{name: "all the credits there are", private: connectDataWith(func(d *connectData) { d.credits = 0xffff }), want: []error{errStaysOpen}, do: expectRsockEcho},
	connectDataWriteAttack("table with no key", func(d *connectData) { d.table.key ^= 0xff }),
	connectDataWriteAttack("table that is longer than its memory", func(d *connectData) { d.table.addr += peerSize - 16 }),
	connectDataWriteAttack("ring with no key", func(d *connectData) { d.ring.key ^= 0xff }),
	connectDataWriteAttack("ring outside its memory", func(d *connectData) { d.ring.addr += peerSize }),
	connectDataWriteAttack("ring at no address", func(d *connectData) { d.ring.addr = 0 }),
	{name: "memory that it deregisters", do: func(p *peer) { p.deregister(); p.sendData([]byte("hello")) }, want: errsReset},
	{name: "never reads", want: []error{os.ErrDeadlineExceeded}, do: func(p *peer) {
		half := uint64(rsockBuffer / 2)
		_, ring := p.victimBuffers()
		for i := range uint64(3) { // its ring has two halves
			p.write(ring.addr+i%2*half, ring.key, testData(int(half)))
			p.sendRsockMsg(uint32(half))
			labtest.Until(p.t, "the half to be read", func() bool { return p.returnedHalves() > i || p.ended() })
		}
	}},
	descriptorAttack("descriptor with no key", func(p *peer) rsockSGE {
		return rsockSGE{p.mem.Addr() + ringAt, p.mem.RKey() ^ 0xff, ringHalf}
	}),
	descriptorAttack("descriptor of 4 GiB", func(p *peer) rsockSGE { return rsockSGE{p.mem.Addr() + peerSize - 10, p.mem.RKey(), ^uint32(0)} }),
	descriptorAttack("descriptor around the end of memory", func(p *peer) rsockSGE { return rsockSGE{^uint64(0) - 10, p.mem.RKey(), ^uint32(0)} }),
	rsockMsgAttack("I/O map", opIOMap|7),
	rsockMsgAttack("reserved 1", 1<<29|1),
	rsockMsgAttack("reserved 2", 2<<29|1),
	rsockMsgAttack("reserved 5", 5<<29|1),
	rsockMsgAttack("unknown control message", opCtrl|3),
	rsockMsgAttack("all bits", ^uint32(0)),
	// A victim that is fast enough to take them all waits for the credits of its echoes, which it does not get.
	{name: "more messages than it has credits for", want: append(errsProtocol, syscall.ECONNRESET, os.ErrDeadlineExceeded), do: func(p *peer) {
		for range 4 * rsockCredits {
			if !p.sendRsockMsg(1) {
				return
			}
		}
		p.Disconnect()
	}},
	{name: "keepalives without end", want: []error{errStaysOpen}, siw: floodedSIW, do: func(p *peer) { p.flood(opCtrl | 1) }},
	{name: "credits without end", want: []error{errStaysOpen}, siw: floodedSIW, do: func(p *peer) { p.flood(opSGL | 16) }},
	{name: "descriptors without end", want: []error{errStaysOpen}, do: func(p *peer) {
		table, _ := p.victimBuffers()
		for i := range uint64(300) {
			s := rsockSGE{p.mem.Addr() + ringAt + i*16, p.mem.RKey(), uint32(i)}
			p.write(table.addr+i%2*16, table.key, s.append(nil, binary.NativeEndian))
			if i%100 == 0 {
				p.sendRsockMsg(opSGL | 16)
			}
		}
		expectRsockEcho(p)
	}},
	{name: "shutdown without end", want: []error{errCleanEnd}, do: func(p *peer) {
		for range 100 {
			if !p.sendRsockMsg(opCtrl | 2) {
				return
			}
		}
	}},
	{name: "disconnects and continues", want: []error{errCleanEnd}, do: func(p *peer) {
		p.sendRsockMsg(opCtrl)
		for range 20 {
			if !p.sendRsockMsg(5) {
				return
			}
		}
	}},
}

// returnedHalves returns how many halves of the ring the victim has offered again: it writes to
// the table for each.
func (p *peer) returnedHalves() uint64 {
	var n uint64
	for i := range 2 {
		if binary.NativeEndian.Uint32(p.mem.Bytes()[tableAt+16*i+12:]) != 0 {
			n++
		}
	}
	return n
}

// floodedSIW are the ends that floods may have on siw, where a message without a receive
// ends a connection. On rxe it is sent again after 0.66 s.
var floodedSIW = []error{errStaysOpen, syscall.ECONNRESET}

// flood sends a message repeatedly; the victim must still answer.
func (p *peer) flood(m uint32) {
	for range 300 {
		if !p.sendRsockMsg(m) {
			return
		}
	}
	expectRsockEcho(p)
}

// expectRsockEcho waits until the peer's data is echoed to its ring.
func expectRsockEcho(p *peer) {
	want := testData(50)
	p.sendData(want)
	labtest.Until(p.t, "the echo", func() bool { return p.ended() || string(p.mem.Bytes()[ringAt:ringAt+50]) == string(want) })
}

var rsockLayer = layer{
	name: "rsock", serve: serveRsock, dial: dialRsock, private: connectDataWith(func(*connectData) {}), attacks: rsockAttacks,
	hello:         connectData{version: 1, credits: 16, table: rsockSGE{1 << 40, 1, 2}, ring: rsockSGE{1 << 41, 1, 4096}}.bytes(),
	warm:          expectRsockEcho,
	refusedErrors: errsProtocol,
	pending:       func(n int) int { return 2 * min(n, rsockBacklog) },
}
