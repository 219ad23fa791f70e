package verbs_test

import (
	"encoding/json"
	"errors"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/goverbs/verbs"
)

// qpAddrText was sent by ibv_rc_pingpong, as a network trace shows.
const qpAddrText = "0000:000011:636ab2:00000000000000000000ffff0a090001"

var qpAddr = verbs.QPAddr{QPNum: 0x11, PSN: 0x636ab2, GID: verbs.GID{10: 0xff, 11: 0xff, 12: 10, 13: 9, 15: 1}}

func TestQPAddr(t *testing.T) {
	if got := qpAddr.String(); got != qpAddrText {
		t.Errorf("address is %q, not %q", got, qpAddrText)
	}
	var a verbs.QPAddr
	if err := json.Unmarshal([]byte(`"`+qpAddrText+`"`), &a); err != nil || a != qpAddr {
		t.Errorf("parsed %+v, %v", a, err)
	}
	if text, err := json.Marshal(a); err != nil || string(text) != `"`+qpAddrText+`"` {
		t.Errorf("%s, %v", text, err)
	}
	b := qpAddr
	b.ECE = verbs.ECE{VendorID: 0x15b3, Options: 0x10000005}
	text, err := json.Marshal(b)
	if err != nil || string(text) != `"`+qpAddrText+`:0015b3:10000005"` || b.String() != qpAddrText {
		t.Errorf("%s, %v", text, err)
	}
	if err := json.Unmarshal(text, &a); err != nil || a != b {
		t.Errorf("parsed %+v, %v", a, err)
	}
	for _, bad := range []string{
		"",
		qpAddrText + ":",
		qpAddrText + ":0015b3",
		qpAddrText + ":0015b3:1000000",
		qpAddrText + ":0015b3:1000000g",
		qpAddrText + ":0015b3:10000005:",
		qpAddrText[1:],
		qpAddrText + "0",
		strings.Repeat("\x00", len(qpAddrText)),
		strings.Repeat(":", len(qpAddrText)),
		strings.Replace(qpAddrText, "636ab2", "63gab2", 1),
		strings.Replace(qpAddrText, "636ab2", "-36ab2", 1),
		strings.Replace(qpAddrText, "ffff", "fffg", 1),
	} {
		if a, err := verbs.ParseQPAddr(bad); err == nil {
			t.Errorf("%q is taken for %+v", bad, a)
		}
	}
}

func FuzzQPAddr(f *testing.F) {
	f.Add(qpAddrText)
	f.Add(qpAddrText + ":0015b3:10000005")
	f.Add(strings.Repeat("0", len(qpAddrText)))
	f.Fuzz(func(t *testing.T, s string) {
		a, err := verbs.ParseQPAddr(s)
		if err != nil {
			return
		}
		text, _ := a.MarshalText()
		if again, err := verbs.ParseQPAddr(string(text)); err != nil || again != a {
			t.Errorf("%q is %+v, which becomes %+v, %v", s, a, again, err)
		}
	})
}

// Messages of ibv_rc_pingpong, as a network trace shows.
const (
	offered  = qpAddrText + "\x00" // of the client
	answered = "0000:000012:9c1f07:00000000000000000000ffff0a090002\x00"
	done     = "done\x00" // of the client
)

var answer = verbs.QPAddr{QPNum: 0x12, PSN: 0x9c1f07, GID: verbs.GID{10: 0xff, 11: 0xff, 12: 10, 13: 9, 15: 2}}

// TestExchange exchanges addresses between two sides, and with a C program of each role, byte for
// byte.
func TestExchange(t *testing.T) {
	var order []string
	step := func(s string) { order = append(order, s) }
	offer := func(c net.Conn) error {
		peer, err := qpAddr.Offer(c)
		step("offer returns")
		if err == nil && peer != answer {
			t.Errorf("offering side: peer %v", peer)
		}
		return err
	}
	reply := func(c net.Conn) error {
		peer, err := answer.Answer(c, func(peer verbs.QPAddr) error {
			step("connect")
			if peer != qpAddr {
				t.Errorf("answering side connects to %v", peer)
			}
			return nil
		})
		if err == nil && peer != qpAddr {
			t.Errorf("answering side: peer %v", peer)
		}
		return err
	}
	// The C programs take what a single read returns for the whole message.
	read := func(c net.Conn, want string) error {
		b := make([]byte, 100)
		n, err := c.Read(b)
		if err == nil && string(b[:n]) != want {
			t.Errorf("C reads %q, not %q", b[:n], want)
		}
		return err
	}
	write := func(c net.Conn, s string) error { _, err := io.WriteString(c, s); return err }
	cClient := func(c net.Conn) error {
		return errors.Join(write(c, offered), read(c, answered), write(c, done))
	}
	cServer := func(c net.Conn) error {
		return errors.Join(read(c, offered), write(c, answered), read(c, done))
	}
	for name, sides := range map[string][2]func(net.Conn) error{
		"Go and Go": {offer, reply},
		"Go client": {offer, cServer},
		"Go server": {cClient, reply},
	} {
		t.Run(name, func(t *testing.T) {
			order = nil
			a, b := net.Pipe()
			defer a.Close()
			defer b.Close()
			a.SetDeadline(time.Now().Add(10 * time.Second))
			b.SetDeadline(time.Now().Add(10 * time.Second))
			other := make(chan error, 1)
			go func() { other <- sides[1](b) }()
			if err := errors.Join(sides[0](a), <-other); err != nil {
				t.Error(err)
			}
			if name == "Go and Go" && (len(order) != 2 || order[0] != "connect") {
				t.Errorf("order %q", order)
			}
		})
	}
}

// TestExchangeErrors exchanges addresses with a peer that sends something else, with one that is
// silent, and where connecting fails.
func TestExchangeErrors(t *testing.T) {
	roles := map[string]func(net.Conn) (verbs.QPAddr, error){
		"offer":  func(c net.Conn) (verbs.QPAddr, error) { return qpAddr.Offer(c) },
		"answer": func(c net.Conn) (verbs.QPAddr, error) { return qpAddr.Answer(c, nil) },
	}
	for name, exchange := range roles {
		t.Run(name, func(t *testing.T) {
			a, b := net.Pipe()
			defer a.Close()
			defer b.Close()
			go io.Copy(io.Discard, b)
			go io.WriteString(b, strings.Repeat("x", len(qpAddrText))+"\n")
			if peer, err := exchange(a); err == nil || strings.Contains(err.Error(), "\n") {
				t.Errorf("%v, %v", peer, err)
			}
			a.SetDeadline(time.Now().Add(10 * time.Millisecond))
			var timeout net.Error
			if peer, err := exchange(a); !errors.As(err, &timeout) || !timeout.Timeout() {
				t.Errorf("%v, %v", peer, err)
			}
		})
	}
	a, b := net.Pipe()
	defer a.Close()
	defer b.Close()
	go func() { io.WriteString(b, offered) }()
	failure := errors.New("no")
	if peer, err := answer.Answer(a, func(verbs.QPAddr) error { return failure }); !errors.Is(err, failure) || peer != (verbs.QPAddr{}) {
		t.Errorf("%v, %v", peer, err)
	}
}
