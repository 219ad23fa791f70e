package rmsg

import (
	"bytes"
	"errors"
	"testing"
)

func TestHello(t *testing.T) {
	good := hello{version: 3, min: 3, credits: 32, eager: 4096, max: 1 << 20, private: []byte("me")}
	b := good.append(nil)
	for _, padded := range [][]byte{b, append(bytes.Clone(b), make([]byte, 20)...)} {
		h, err := parseHello(padded)
		if err != nil || h.credits != 32 || h.eager != 4096 || h.max != 1<<20 || string(h.private) != "me" {
			t.Errorf("%v, %v", h, err)
		}
	}
	for name, c := range map[string]struct {
		change func(h *hello)
		want   error
	}{
		"no version in common":    {func(h *hello) { h.version, h.min = 9, 4 }, ErrVersion},
		"version 0":               {func(h *hello) { h.version, h.min = 0, 0 }, ErrVersion},
		"oldest above newest":     {func(h *hello) { h.version, h.min = 3, 4 }, ErrVersion},
		"one version older":       {func(h *hello) { h.version, h.min = 2, 2 }, ErrVersion},
		"newer, and speaks ours":  {func(h *hello) { h.version = 7 }, nil},
		"no credits":              {func(h *hello) { h.credits = 0 }, ErrProtocol},
		"too many credits":        {func(h *hello) { h.credits = maxCount + 1 }, ErrProtocol},
		"small eager":             {func(h *hello) { h.eager = minEager - 1 }, ErrProtocol},
		"large eager":             {func(h *hello) { h.eager = maxEager + 1 }, ErrProtocol},
		"large messages":          {func(h *hello) { h.max = 1<<32 - 1 }, ErrProtocol},
		"takes no large messages": {func(h *hello) { h.max = 0 }, nil},
	} {
		h := good
		c.change(&h)
		if _, err := parseHello(h.append(nil)); !errors.Is(err, c.want) {
			t.Errorf("%s: %v, want %v", name, err, c.want)
		}
	}
	if _, err := parseHello(b[:helloSize-1]); !errors.Is(err, ErrProtocol) {
		t.Errorf("short: %v", err)
	}
	if _, err := parseHello(b[:helloSize+1]); !errors.Is(err, ErrProtocol) {
		t.Errorf("private data cut off: %v", err)
	}
	if _, err := parseHello([]byte("GET / HTTP/1.1\r\nHost: example.org\r\n\r\n")); !errors.Is(err, ErrProtocol) {
		t.Errorf("something else: %v", err)
	}
}

func TestFrame(t *testing.T) {
	for _, f := range []frame{
		{kind: kindHello, granted: 7},
		{kind: kindMessage, size: 3, seq: 1<<32 - 1, granted: 5, read: 6},
		{kind: kindMessage},
		{kind: kindMessage, size: 100},
		{kind: kindMessage, size: 5000},
		{kind: kindAnnounce, size: 1 << 30, seq: 4, addr: 1<<64 - 1<<31, rkey: 1<<32 - 1},
		{kind: kindAck, granted: 1, read: 1},
		{kind: kindBye, flags: flagByeAnswer},
	} {
		b := make([]byte, announceSize)
		b = b[:f.put(b)]
		if f.kind == kindMessage {
			b = append(b, make([]byte, f.size)...)
		}
		got, err := parseFrame(b)
		if err != nil || got != f {
			t.Errorf("%+v became %+v, %v", f, got, err)
		}
		if _, err := parseFrame(b[:len(b)-1]); !errors.Is(err, ErrProtocol) {
			t.Errorf("%+v, cut off: %v", f, err)
		}
		if _, err := parseFrame(append(b, 0)); !errors.Is(err, ErrProtocol) {
			t.Errorf("%+v, too long: %v", f, err)
		}
	}
	for _, f := range []frame{
		{kind: 0}, {kind: 6}, {kind: kindAnnounce}, {kind: kindAck, size: 1},
		{kind: kindAnnounce, size: 2, addr: 1<<64 - 1},
	} {
		b := make([]byte, announceSize)
		if _, err := parseFrame(b[:f.put(b)]); !errors.Is(err, ErrProtocol) {
			t.Errorf("%+v: %v", f, err)
		}
	}
}

// FuzzFrame tests that a parsed frame is the same after encoding and parsing it again.
func FuzzFrame(f *testing.F) {
	for _, k := range []kind{kindHello, kindMessage, kindAnnounce, kindAck, kindBye} {
		b := make([]byte, announceSize)
		seed := frame{kind: k}
		if k == kindAnnounce {
			seed.size = 1
		}
		f.Add(b[:seed.put(b)])
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		got, err := parseFrame(b)
		if err != nil {
			if !errors.Is(err, ErrProtocol) {
				t.Error(err)
			}
			return
		}
		var again [announceSize]byte
		n := got.put(again[:])
		if got.kind == kindMessage && int(got.size) != len(b)-n || got.kind != kindMessage && n != len(b) {
			t.Errorf("%d bytes are %+v", len(b), got)
		}
		if second, err := parseFrame(append(again[:n:n], b[n:]...)); err != nil || second != got {
			t.Errorf("%+v became %+v, %v", got, second, err)
		}
	})
}

// FuzzHello tests that the values of a parsed hello are in range.
func FuzzHello(f *testing.F) {
	h := hello{version: 3, min: 3, credits: 1, eager: 64, private: []byte("x")}
	f.Add(h.append(nil))
	f.Fuzz(func(t *testing.T, b []byte) {
		h, err := parseHello(b)
		if err != nil {
			if !errors.Is(err, ErrProtocol) && !errors.Is(err, ErrVersion) {
				t.Error(err)
			}
			return
		}
		if h.credits < 1 || h.credits > maxCount || h.eager < minEager || h.eager > maxEager || h.max > maxSize || len(h.private) > len(b)-helloSize {
			t.Errorf("%+v", h)
		}
	})
}
