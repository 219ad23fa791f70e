package hostile

import (
	"bytes"
	"context"
	"encoding/binary"
	"io"
	"testing"
	"time"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/internal/labtest"
	"github.com/goverbs/verbs/rmsg"
	"github.com/goverbs/verbs/tests/workload"
)

const (
	msgCredits = 4
	msgEager   = 2048
	msgMaxSize = 1 << 20
)

// msgHello is the private data of package rmsg, as documented there.
type msgHello struct {
	version, oldest, length byte
	credits, eager, most    uint32
	more                    []byte
}

func (h msgHello) bytes() []byte {
	b := append([]byte("VMSG"), h.version, h.oldest, h.length, 0)
	for _, v := range []uint32{h.credits, h.eager, h.most} {
		b = binary.BigEndian.AppendUint32(b, v)
	}
	return append(b, h.more...)
}

func msgHelloWith(change func(*msgHello)) func(p *peer) []byte {
	return func(*peer) []byte {
		h := msgHello{version: 3, oldest: 3, credits: 16, eager: msgEager, most: msgMaxSize}
		change(&h)
		return h.bytes()
	}
}

// frame is a frame of package rmsg, as documented there.
type frame struct {
	kind, flags         byte
	size, seq           uint32
	granted, taken      uint32
	addr                uint64
	key                 uint32
	reserved, reserved2 uint32
	body                []byte
}

const (
	frameHello = iota + 1
	frameMessage
	frameAnnounce
	frameAck
	frameBye
)

func (f frame) bytes() []byte {
	b := []byte{f.kind, f.flags, 0, 0}
	for _, v := range []uint32{f.size, f.seq, f.granted, f.taken, f.reserved} {
		b = binary.BigEndian.AppendUint32(b, v)
	}
	if f.kind == frameAnnounce {
		b = binary.BigEndian.AppendUint64(b, f.addr)
		b = binary.BigEndian.AppendUint32(b, f.key)
		b = binary.BigEndian.AppendUint32(b, f.reserved2)
	}
	return append(b, f.body...)
}

// exchangeHello sends a hello and waits for the victim's.
func (p *peer) exchangeHello() {
	p.send(frame{kind: frameHello, granted: 16}.bytes())
	labtest.Until(p.t, "the victim's hello", func() bool { return p.received(frameHello) || p.ended() })
}

// received reports whether a frame of a kind has been received.
func (p *peer) received(kind byte) bool {
	for i := range recvs {
		if p.mem.Bytes()[recvAt+i*recvSlot] == kind {
			return true
		}
	}
	return false
}

// announce announces a message in the peer's memory.
func (p *peer) announce(seq, size uint32) {
	p.send(frame{kind: frameAnnounce, granted: 16, seq: seq, size: size, addr: p.mem.Addr(), key: p.mem.RKey()}.bytes())
}

func serveMsg(t *testing.T, s *server) {
	l, end, err := workload.RunLoop(rmsg.Options{
		Credits: msgCredits, Eager: msgEager, MaxMessage: msgMaxSize, Window: msgMaxSize, SendQueue: 4,
		ConnectTimeout: s.handshakeTimeout, Linger: time.Second,
		Callbacks: rmsg.Callbacks{
			Request:      func(r *rmsg.Request) { r.Accept(nil) },
			Established:  func(c *rmsg.Conn) { s.addConn(c.RemoteAddr().String(), c) },
			Message:      echoMsg,
			Sent:         func(_ *rmsg.Conn, b *rmsg.Buffer) { b.Free() },
			Disconnected: func(c *rmsg.Conn, why error) { s.report(c.RemoteAddr().String(), why) },
		},
	})
	labtest.Check(t, err)
	t.Cleanup(func() {
		if err := end(); err != nil {
			t.Error(err)
		}
	})
	ln := labtest.Must((&rmsg.ListenConfig{Loop: l, Backlog: 16}).Listen(t.Context(), labtest.AddrOf(s.device)+":0"))(t)
	s.addr = ln.Addr().String()
}

// echoMsg echoes a message to a client. It drops the message if there is no room for the
// answer.
func echoMsg(c *rmsg.Conn, b *rmsg.Buffer) {
	defer b.Free()
	answer, err := c.Alloc(len(b.Bytes()))
	if err != nil {
		return
	}
	copy(answer.Bytes(), b.Bytes())
	if c.Post(answer) != nil {
		answer.Free()
	}
}

func dialMsg(ctx context.Context, addr string) (client, error) {
	l, end, err := workload.RunLoop(rmsg.Options{Eager: msgEager / 4}) // so that some messages are announced
	if err != nil {
		return client{}, err
	}
	c, err := (&rmsg.Dialer{Loop: l}).Dial(ctx, addr)
	if err != nil {
		end()
		return client{}, err
	}
	return client{end: end, echo: func(b []byte) ([]byte, error) {
		ctx, cancel := context.WithTimeout(context.Background(), waitTimeout)
		defer cancel()
		if err := c.Send(ctx, b); err != nil {
			return nil, err
		}
		got, err := c.Recv(ctx)
		if err != nil {
			return nil, err
		}
		defer got.Free()
		return bytes.Clone(got.Bytes()), nil
	}}, nil
}

func msgHelloAttack(name string, change func(*msgHello)) attack {
	return attack{name: name, private: msgHelloWith(change), want: []error{errRefused}}
}

// msgFrameAttack returns an attack that sends frames after the hello.
func msgFrameAttack(name string, frames ...frame) attack {
	return attack{name: name, want: []error{rmsg.ErrProtocol}, do: func(p *peer) {
		p.exchangeHello()
		for _, f := range frames {
			p.send(f.bytes())
		}
	}}
}

var errsPeerGone = []error{verbs.ErrDisconnected, rmsg.ErrTimeout}

var msgAttacks = []attack{
	msgHelloAttack("version 0", func(h *msgHello) { h.version, h.oldest = 0, 0 }),
	msgHelloAttack("versions in the wrong order", func(h *msgHello) { h.version, h.oldest = 2, 3 }),
	msgHelloAttack("versions to come", func(h *msgHello) { h.version, h.oldest = 255, 4 }),
	msgHelloAttack("more credits than there may be", func(h *msgHello) { h.credits = 4097 }),
	msgHelloAttack("all the credits there are", func(h *msgHello) { h.credits = ^uint32(0) }),
	msgHelloAttack("no eager bytes", func(h *msgHello) { h.eager = 0 }),
	msgHelloAttack("too few eager bytes", func(h *msgHello) { h.eager = 63 }),
	msgHelloAttack("too many eager bytes", func(h *msgHello) { h.eager = 1<<20 + 1 }),
	msgHelloAttack("messages above 1 GiB", func(h *msgHello) { h.most = 1<<30 + 1 }),
	msgHelloAttack("messages of 4 GiB", func(h *msgHello) { h.most = ^uint32(0) }),
	msgHelloAttack("private data beyond the end", func(h *msgHello) { h.length = 255 }),
	{name: "versions to come and this one", private: msgHelloWith(func(h *msgHello) { h.version = 255 }), want: []error{errStaysOpen}, do: expectMsgEcho},
	{name: "takes no message at all", private: msgHelloWith(func(h *msgHello) { h.most = 0 }), want: []error{errStaysOpen}, do: func(p *peer) {
		p.exchangeHello()
		p.send(frame{kind: frameMessage, granted: 16, size: 5, body: []byte("hello")}.bytes())
	}},
	msgFrameAttack("kind 0", frame{granted: 16}),
	msgFrameAttack("kind 255", frame{kind: 255, granted: 16}),
	msgFrameAttack("ack with a body", frame{kind: frameAck, granted: 16, body: []byte("x")}),
	msgFrameAttack("size of 4 GiB", frame{kind: frameMessage, granted: 16, size: ^uint32(0)}),
	msgFrameAttack("message above what is sent at once", frame{kind: frameMessage, granted: 16, size: msgEager + 1, body: make([]byte, msgEager)}),
	msgFrameAttack("number to come", frame{kind: frameMessage, granted: 16, seq: 1 << 31}),
	msgFrameAttack("credits that turn around", frame{kind: frameAck, granted: 16 + 1<<31}),
	msgFrameAttack("took what was never announced", frame{kind: frameAck, granted: 16, taken: ^uint32(0)}),
	msgFrameAttack("announces more than its credits", announceFrames(5)...),
	{name: "acks without end", want: []error{errStaysOpen}, siw: []error{errStaysOpen, verbs.ErrDisconnected}, do: func(p *peer) {
		p.exchangeHello()
		for range 100 {
			if !p.send(frame{kind: frameAck, granted: 16}.bytes()) {
				return
			}
		}
	}},
	{name: "messages without end", want: []error{rmsg.ErrProtocol}, siw: []error{rmsg.ErrProtocol, verbs.ErrDisconnected}, do: func(p *peer) {
		p.exchangeHello()
		for seq := range uint32(100) {
			if !p.send(frame{kind: frameMessage, granted: 16, seq: seq}.bytes()) {
				return
			}
		}
	}},
	{name: "announces memory that it deregisters", want: []error{rmsg.ErrUnreadable, verbs.ErrDisconnected}, do: func(p *peer) {
		p.exchangeHello()
		table := frame{kind: frameAnnounce, granted: 16, size: 60 << 10, addr: p.mem.Addr(), key: p.mem.RKey()}.bytes()
		p.deregister()
		p.send(table)
	}},
	{name: "never takes what is announced", want: []error{errStaysOpen}, do: func(p *peer) {
		p.exchangeHello()
		p.announce(0, 60<<10)
		labtest.Until(p.t, "the announcement of the echo", func() bool { return p.received(frameAnnounce) || p.ended() })
	}},
	{name: "never grants anything", private: msgHelloWith(func(h *msgHello) { h.credits = 1 }), want: []error{errStaysOpen}, do: func(p *peer) {
		p.send(frame{kind: frameHello, granted: 1}.bytes())
		labtest.Until(p.t, "the victim's hello", func() bool { return p.received(frameHello) || p.ended() })
		for seq := range uint32(msgCredits) {
			p.send(frame{kind: frameMessage, granted: 1, seq: seq}.bytes())
		}
		labtest.Until(p.t, "the echo", func() bool { return p.received(frameMessage) || p.ended() })
	}},
	{name: "says goodbye and stays", want: []error{io.EOF}, do: func(p *peer) {
		p.exchangeHello()
		p.send(frame{kind: frameBye, granted: 16}.bytes())
	}},
	{name: "never says hello", want: errsPeerGone, do: func(p *peer) {}},
	{name: "leaves in the middle of a READ", want: []error{rmsg.ErrUnreadable, verbs.ErrDisconnected}, do: func(p *peer) {
		p.exchangeHello()
		for seq := range uint32(msgCredits) {
			p.announce(seq, 60<<10)
		}
		p.Disconnect()
	}},
}

func announceFrames(n int) (frames []frame) {
	for seq := range n {
		frames = append(frames, frame{kind: frameAnnounce, granted: 16, seq: uint32(seq), size: 1 << 10, addr: 0x1000, key: 1})
	}
	frames[0].size = msgMaxSize + 1 // otherwise the first would be read, which fails differently
	return frames
}

// expectMsgEcho waits until a message is echoed.
func expectMsgEcho(p *peer) {
	p.exchangeHello()
	p.send(frame{kind: frameMessage, granted: 16, size: 5, body: []byte("hello")}.bytes())
	labtest.Until(p.t, "the echo", func() bool { return p.received(frameMessage) || p.ended() })
}

var msgLayer = layer{
	name: "rmsg", serve: serveMsg, dial: dialMsg, private: msgHelloWith(func(*msgHello) {}), attacks: msgAttacks,
	hello:         msgHelloWith(func(*msgHello) {})(nil),
	refusedErrors: []error{rmsg.ErrProtocol, rmsg.ErrVersion},
	warm: func(p *peer) {
		p.exchangeHello()
		p.send(frame{kind: frameMessage, granted: 16, size: 5, body: []byte("hello")}.bytes())
		p.announce(1, 8<<10)
		labtest.Until(p.t, "the echoes", func() bool { return p.received(frameMessage) && p.received(frameAnnounce) || p.ended() })
	},
	pending: func(n int) int { return n }, // its program accepts all requests
}
