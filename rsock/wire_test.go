package rsock

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"math"
	"testing"
)

// The private data that C's rstream sends.
const wireHello = "01020180" + "00000000" +
	"0000556677881200" + "0000abcd" + "00000002" +
	"00007f0102030000" + "0000ef01" + "00010000"

func TestHello(t *testing.T) {
	raw, err := hex.DecodeString(wireHello)
	if err != nil {
		t.Fatal(err)
	}
	want := hello{
		credits: 384,
		sgl:     sge{0x556677881200, 0xabcd, 2},
		buffer:  sge{0x7f0102030000, 0xef01, 65536},
	}
	got, err := parseHello(append(raw, make([]byte, 156)...))
	if err != nil || got != want {
		t.Errorf("%+v, %v", got, err)
	}
	b := bytes.Repeat([]byte{0xff}, helloSize)
	want.put(b)
	if !bytes.Equal(b, raw) {
		t.Errorf("encoded as %x", b)
	}
	raw[1] |= flagNet
	if got, err := parseHello(raw); err != nil || !got.bigEndian {
		t.Errorf("%+v, %v", got, err)
	}
	for name, change := range map[string]func(b []byte) []byte{
		"nothing":               func(b []byte) []byte { return nil },
		"too short":             func(b []byte) []byte { return b[:39] },
		"zeros":                 func(b []byte) []byte { return make([]byte, 56) },
		"version 2":             func(b []byte) []byte { b[0] = 2; return b },
		"no credits":            func(b []byte) []byte { b[2], b[3] = 0, 0; return b },
		"one descriptor":        func(b []byte) []byte { b[23] = 1; return b },
		"descriptors that wrap": func(b []byte) []byte { copy(b[8:], "\xff\xff\xff\xff\xff\xff\xff\xff"); return b },
		"no buffer":             func(b []byte) []byte { clear(b[36:40]); return b },
		"a buffer that wraps":   func(b []byte) []byte { copy(b[24:], "\xff\xff\xff\xff\xff\xff\xff\x00"); return b },
	} {
		if h, err := parseHello(change(bytes.Clone(raw))); !errors.Is(err, ErrProtocol) {
			t.Errorf("%s: %+v, %v", name, h, err)
		}
	}
}

func FuzzHello(f *testing.F) {
	raw, _ := hex.DecodeString(wireHello)
	f.Add(raw)
	f.Fuzz(func(t *testing.T, b []byte) {
		h, err := parseHello(b)
		if err != nil {
			return
		}
		out := make([]byte, helloSize)
		h.put(out)
		if again, err := parseHello(out); err != nil || again != h {
			t.Errorf("%+v becomes %+v, %v", h, again, err)
		}
	})
}

// unconnected returns a Conn without a device, which can handle messages.
func unconnected() *Conn {
	opt, err := Options{ReadBuffer: minBuffer, WriteBuffer: minBuffer, RecvQueue: minQueue}.withDefaults()
	if err != nil {
		panic(err)
	}
	c := makeConn(opt)
	c.reader.ring = recvRing{buf: make([]byte, c.opt.ReadBuffer), offered: uint64(c.opt.ReadBuffer / 2), limit: minQueue}
	c.writer.ring.buf, c.writer.targets.table = make([]byte, c.opt.WriteBuffer), make([]byte, sgeCount*sgeSize)
	c.hello = hello{credits: 20, buffer: sge{1 << 40, 7, 3000}, sgl: sge{1 << 41, 8, 2}}
	c.writer.start(c.hello)
	return c
}

// FuzzMessages tests that no messages of a peer cause accesses beyond the rings or the
// credits.
func FuzzMessages(f *testing.F) {
	f.Add([]byte{0, 0, 4, 0, 0x80, 0, 0, 20, 0xe0, 0, 0, 2, 0, 0, 0, 1})
	f.Add([]byte{0x80, 0, 0, 40, 0x80, 0, 0xff, 0xff, 0xe0, 0, 0, 0})
	f.Fuzz(func(t *testing.T, data []byte) {
		c := unconnected()
		for ; len(data) >= 4; data = data[4:] {
			copy(c.writer.targets.table, data) // as the peer may write at any time
			m := message(uint32(data[0])<<24 | uint32(data[1])<<16 | uint32(data[2])<<8 | uint32(data[3]))
			ended := !c.peer.canWrite()
			if err := c.handleMessage(m); err != nil {
				if !errors.Is(err, ErrProtocol) {
					t.Fatal(err)
				}
				return
			}
			switch {
			case ended && m.op() == opData:
				t.Fatal("data after the end")
			case c.reader.ring.received > c.reader.ring.offered:
				t.Fatalf("%d bytes of %d offered", c.reader.ring.received, c.reader.ring.offered)
			case c.writer.credits.limit-c.writer.credits.seq > c.hello.credits:
				t.Fatalf("credits up to %d", c.writer.credits.limit)
			}
			c.reader.ring.piece()
		}
	})
}

func TestMessages(t *testing.T) {
	for _, r := range []struct {
		name string
		say  []message
	}{
		{"nothing arrived", []message{opData}},
		{"more than was offered", []message{opData | 2049}},
		{"more than is left", []message{opData | 2000, opData | 49}},
		{"the longest", []message{opData | dataMask}},
		{"more messages than credits", append(make([]message, 0, 17), 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1)},
		{"data after SHUTDOWN", []message{msgShutdown, opData | 1}},
		{"data after DISCONNECT", []message{msgDisconnect, opData | 1}},
		{"too many credits", []message{opSGL | 21}},
		{"credits taken back", []message{opSGL | 0xffff}},
		{"a reserved operation", []message{1 << opShift}},
		{"an operation of the sender's", []message{2 << opShift}},
		{"an I/O map", []message{6 << opShift}},
		{"an unknown control", []message{opCtrl | 3}},
	} {
		c := unconnected()
		for i, m := range r.say {
			err := c.handleMessage(m)
			if last := i == len(r.say)-1; last != errors.Is(err, ErrProtocol) {
				t.Errorf("%s: message %d: %v", r.name, i, err)
			}
		}
	}
}

// TestDescriptors tests that descriptors are taken whole, in order and once.
func TestDescriptors(t *testing.T) {
	c := unconnected()
	o := &c.writer.targets
	b := c.hello.buffer
	write := func(i int, s sge) { s.put(o.table[i*sgeSize:], binary.NativeEndian) }
	say := func() {
		t.Helper()
		if err := c.handleMessage(opSGL | 20); err != nil {
			t.Fatal(err)
		}
	}
	second := sge{b.addr + 3000, b.key, 3000}
	say()
	if o.target != [2]sge{b} {
		t.Fatalf("before any came: %+v", o.target)
	}
	write(1, sge{0, b.key, 3000}) // half written
	say()
	if o.target[1].length != 0 {
		t.Fatalf("half a descriptor was taken: %+v", o.target)
	}
	write(1, second)
	say()
	if o.target != [2]sge{b, second} || o.next != 0 {
		t.Fatalf("%+v, next %d", o.target, o.next)
	}
	write(1, sge{1, 2, 3}) // out of turn
	say()
	c.writer.prepare(make([]byte, 3000), true)
	if o.cur != 1 || o.target[0].length != 0 {
		t.Fatalf("%+v", o)
	}
	other := sge{1 << 50, 9, 100} // not one of two halves: accepted when it reads the same twice
	write(0, other)
	say()
	say()
	if o.target[0] != other || o.next != 1 {
		t.Fatalf("%+v", o)
	}
}

// TestLargestOffer tests that a peer may offer up to 2^32 - 1 bytes.
func TestLargestOffer(t *testing.T) {
	c := unconnected()
	c.writer.targets.target[0].length = math.MaxUint32
	if _, n := c.writer.prepare(make([]byte, 1000), false); n != 1000 {
		t.Errorf("a message of %d bytes", n)
	}
	if left := c.writer.targets.target[0].length; left != math.MaxUint32-1000 {
		t.Errorf("%d bytes are left", left)
	}
}

// TestPanicState tests that after a panic of a caller's reader or writer no call is
// counted and no lock is held.
func TestPanicState(t *testing.T) {
	for name, call := range map[string]func(*Conn){
		"ReadFrom": func(c *Conn) { c.ReadFrom(panics{}) },
		"WriteTo":  func(c *Conn) { c.WriteTo(panics{}) },
	} {
		c := unconnected()
		c.reader.ring.buf = make([]byte, maxChunk)
		c.reader.ring.received = maxChunk
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("%s: no panic", name)
				}
			}()
			call(c)
		}()
		if !c.reader.mu.TryLock() || !c.writer.mu.TryLock() || !c.mu.TryLock() {
			t.Fatalf("%s: a lock is held", name)
		}
		if c.calls != 0 || c.reader.ring.copying {
			t.Errorf("%s: calls %d, copying %v", name, c.calls, c.reader.ring.copying)
		}
	}
}

type panics struct{}

func (panics) Read([]byte) (int, error)  { panic("read") }
func (panics) Write([]byte) (int, error) { panic("write") }
