package hostile

import (
	"context"
	"encoding/binary"
	"errors"
	"io"
	"os"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/goverbs/verbs/cm"
	"github.com/goverbs/verbs/internal/labtest"
	"github.com/goverbs/verbs/rsock"
)

func isRefused(err error) bool {
	_, rejected := errors.AsType[*cm.RejectedError](err)
	return rejected
}

// sgeOf is a descriptor of rsockets.
type sgeOf struct {
	addr        uint64
	key, length uint32
}

func (s sgeOf) append(b []byte, order binary.AppendByteOrder) []byte {
	return order.AppendUint32(order.AppendUint32(order.AppendUint64(b, s.addr), s.key), s.length)
}

// connectData is the private data of rsockets (librdmacm's rs_conn_data).
type connectData struct {
	version, flags, iomap byte
	credits               uint16
	table, ring           sgeOf
	short                 int // bytes that are missing
}

func (d connectData) bytes() []byte {
	b := binary.BigEndian.AppendUint16([]byte{d.version, d.flags}, d.credits)
	b = append(b, 0, 0, 0, d.iomap)
	b = d.ring.append(d.table.append(b, binary.BigEndian), binary.BigEndian)
	return b[:len(b)-d.short]
}

// rsockOf returns a function that makes a peer's private data, with a change.
func rsockOf(change func(*connectData)) func(p *peer) []byte {
	return func(p *peer) []byte {
		d := connectData{
			version: 1, flags: 2, credits: 16,
			table: sgeOf{p.mem.Addr() + tableAt, p.mem.RKey(), 2},
			ring:  sgeOf{p.mem.Addr() + ringAt, p.mem.RKey(), ringHalf},
		}
		change(&d)
		return d.bytes()
	}
}

// theirs returns the ring and table that the victim has sent.
func (p *peer) theirs() (table, ring sgeOf) {
	b := p.PrivateData
	get := func(b []byte) sgeOf {
		return sgeOf{binary.BigEndian.Uint64(b), binary.BigEndian.Uint32(b[8:]), binary.BigEndian.Uint32(b[12:])}
	}
	return get(b[8:]), get(b[24:])
}

const (
	rsockBuffer  = 16 << 10
	rsockCredits = 64
	rsockBacklog = 16

	opSGL, opIOMap, opCtrl = 4 << 29, 6 << 29, 7 << 29
)

// data writes bytes to the start of the victim's ring, and announces them.
func (p *peer) data(b []byte) bool {
	_, ring := p.theirs()
	return p.write(ring.addr, ring.key, b) && p.say(uint32(len(b)))
}

// offer writes a descriptor to the victim's table, and announces it.
func (p *peer) offer(s sgeOf) bool {
	table, _ := p.theirs()
	return p.write(table.addr+16, table.key, s.append(nil, binary.NativeEndian)) && p.say(opSGL|16)
}

func text(n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(i*31 + i>>8)
	}
	return b
}

func serveRsock(t *testing.T, s *server) {
	conf := rsock.ListenConfig{
		Options: rsock.Options{ReadBuffer: rsockBuffer, WriteBuffer: rsockBuffer, SendQueue: 32, RecvQueue: rsockCredits},
		Backlog: rsockBacklog, HandshakeTimeout: s.shake,
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
			s.up(c.RemoteAddr().String(), c)
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
		c.SetDeadline(time.Now().Add(patience))
		if _, err := c.Write(b); err != nil {
			return nil, err
		}
		got := make([]byte, len(b))
		_, err := io.ReadFull(c, got)
		return got, err
	}}, nil
}

var reset = []error{syscall.ECONNRESET}
var protocol = []error{rsock.ErrProtocol}

func rsockLie(name string, change func(*connectData)) attack {
	return attack{name: name, private: rsockOf(change), want: []error{errRefused}}
}

// rsockLater returns an attack that fails only when the victim writes.
func rsockLater(name string, change func(*connectData)) attack {
	return attack{name: name, private: rsockOf(change), do: func(p *peer) { p.data(text(100)) }, want: reset}
}

func rsockSays(name string, m uint32) attack {
	return attack{name: name, do: func(p *peer) { p.say(m) }, want: protocol}
}

func rsockOffers(name string, s func(p *peer) sgeOf) attack {
	return attack{name: name, want: reset, do: func(p *peer) {
		p.offer(s(p))
		p.data(text(ringHalf)) // fills the half of the ring that was offered first
		labtest.Until(p.t, "the other half to be offered", func() bool { return p.written() > 0 || p.ended() })
		_, ring := p.theirs()
		p.write(ring.addr+rsockBuffer/2, ring.key, text(100))
		p.say(100)
	}}
}

var rsockAttacks = []attack{
	rsockLie("version 0", func(d *connectData) { d.version = 0 }),
	rsockLie("version 2", func(d *connectData) { d.version = 2 }),
	rsockLie("no credits", func(d *connectData) { d.credits = 0 }),
	rsockLie("table of nothing", func(d *connectData) { d.table.length = 0 }),
	rsockLie("table of one", func(d *connectData) { d.table.length = 1 }),
	rsockLie("table around the end of memory", func(d *connectData) { d.table.addr = ^uint64(0) - 16 }),
	rsockLie("endless table", func(d *connectData) { d.table.addr, d.table.length = ^uint64(0)-1<<35, ^uint32(0) }),
	rsockLie("ring of nothing", func(d *connectData) { d.ring.length = 0 }),
	rsockLie("ring around the end of memory", func(d *connectData) { d.ring.addr = ^uint64(0) - 100 }),
	{name: "a byte less than it takes", private: rsockOf(func(d *connectData) { d.short = 1 }), want: []error{errRefused}, only: labtest.SIW}, // RoCE pads
	{name: "flags that nobody knows", private: rsockOf(func(d *connectData) { d.flags, d.iomap = 0xfe, 0xff }), want: []error{errGoesOn}, do: echoesRsock},
	{name: "all the credits there are", private: rsockOf(func(d *connectData) { d.credits = 0xffff }), want: []error{errGoesOn}, do: echoesRsock},
	rsockLater("table with no key", func(d *connectData) { d.table.key ^= 0xff }),
	rsockLater("table that is longer than its memory", func(d *connectData) { d.table.addr += peerSize - 16 }),
	rsockLater("ring with no key", func(d *connectData) { d.ring.key ^= 0xff }),
	rsockLater("ring outside its memory", func(d *connectData) { d.ring.addr += peerSize }),
	rsockLater("ring at no address", func(d *connectData) { d.ring.addr = 0 }),
	{name: "memory that it deregisters", do: func(p *peer) { p.forget(); p.data([]byte("hello")) }, want: reset},
	{name: "never reads", want: []error{os.ErrDeadlineExceeded}, do: func(p *peer) {
		half := uint64(rsockBuffer / 2)
		_, ring := p.theirs()
		for i := range uint64(3) { // its ring has two halves
			p.write(ring.addr+i%2*half, ring.key, text(int(half)))
			p.say(uint32(half))
			labtest.Until(p.t, "the half to be read", func() bool { return p.written() > i || p.ended() })
		}
	}},
	rsockOffers("descriptor with no key", func(p *peer) sgeOf {
		return sgeOf{p.mem.Addr() + ringAt, p.mem.RKey() ^ 0xff, ringHalf}
	}),
	rsockOffers("descriptor of 4 GiB", func(p *peer) sgeOf { return sgeOf{p.mem.Addr() + peerSize - 10, p.mem.RKey(), ^uint32(0)} }),
	rsockOffers("descriptor around the end of memory", func(p *peer) sgeOf { return sgeOf{^uint64(0) - 10, p.mem.RKey(), ^uint32(0)} }),
	rsockSays("I/O map", opIOMap|7),
	rsockSays("reserved 1", 1<<29|1),
	rsockSays("reserved 2", 2<<29|1),
	rsockSays("reserved 5", 5<<29|1),
	rsockSays("control that nobody knows", opCtrl|3),
	rsockSays("all bits", ^uint32(0)),
	{name: "more messages than it has credits for", want: append(protocol, syscall.ECONNRESET), do: func(p *peer) {
		for range 4 * rsockCredits {
			if !p.say(1) {
				return
			}
		}
		p.Disconnect() // in case the victim was fast enough
	}},
	{name: "keepalives without end", want: []error{errGoesOn}, siw: floodedSIW, do: func(p *peer) { p.flood(opCtrl | 1) }},
	{name: "credits without end", want: []error{errGoesOn}, siw: floodedSIW, do: func(p *peer) { p.flood(opSGL | 16) }},
	{name: "descriptors without end", want: []error{errGoesOn}, do: func(p *peer) {
		table, _ := p.theirs()
		for i := range uint64(300) {
			s := sgeOf{p.mem.Addr() + ringAt + i*16, p.mem.RKey(), uint32(i)}
			p.write(table.addr+i%2*16, table.key, s.append(nil, binary.NativeEndian))
			if i%100 == 0 {
				p.say(opSGL | 16)
			}
		}
		echoesRsock(p)
	}},
	{name: "shutdown without end", want: []error{errInOrder}, do: func(p *peer) {
		for range 100 {
			if !p.say(opCtrl | 2) {
				return
			}
		}
	}},
	{name: "disconnects and continues", want: []error{errInOrder}, do: func(p *peer) {
		p.say(opCtrl)
		for range 20 {
			if !p.say(5) {
				return
			}
		}
	}},
}

// written returns how many halves of the ring the victim has offered again: it writes to
// the table for each.
func (p *peer) written() uint64 {
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
var floodedSIW = []error{errGoesOn, syscall.ECONNRESET}

// flood sends a message repeatedly; the victim must still answer.
func (p *peer) flood(m uint32) {
	for range 300 {
		if !p.say(m) {
			return
		}
	}
	echoesRsock(p)
}

// echoesRsock waits until the peer's data is echoed to its ring.
func echoesRsock(p *peer) {
	want := text(50)
	p.data(want)
	labtest.Until(p.t, "the echo", func() bool { return p.ended() || string(p.mem.Bytes()[ringAt:ringAt+50]) == string(want) })
}

var rsockLayer = layer{
	name: "rsock", serve: serveRsock, dial: dialRsock, private: rsockOf(func(*connectData) {}), attacks: rsockAttacks,
	hello:   connectData{version: 1, credits: 16, table: sgeOf{1 << 40, 1, 2}, ring: sgeOf{1 << 41, 1, 4096}}.bytes(),
	warm:    echoesRsock,
	denial:  protocol,
	pending: func(n int) int { return 2 * min(n, rsockBacklog) },
}
