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
	for _, bad := range []string{
		"",
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
	f.Add(strings.Repeat("0", len(qpAddrText)))
	f.Fuzz(func(t *testing.T, s string) {
		a, err := verbs.ParseQPAddr(s)
		if err != nil {
			return
		}
		if again, err := verbs.ParseQPAddr(a.String()); err != nil || again != a {
			t.Errorf("%q is %+v, which becomes %+v, %v", s, a, again, err)
		}
	})
}

// TestExchange exchanges addresses with a peer, with one that sends something else, and
// with one that stays silent.
func TestExchange(t *testing.T) {
	other := verbs.QPAddr{QPNum: 0x12, LID: 7}
	a, b := net.Pipe()
	defer a.Close()
	defer b.Close()
	heard := make(chan verbs.QPAddr, 1)
	go func() {
		peer, err := other.Exchange(b)
		if err != nil {
			t.Error(err)
		}
		heard <- peer
	}()
	if peer, err := qpAddr.Exchange(a); err != nil || peer != other {
		t.Errorf("%v, %v", peer, err)
	}
	if peer := <-heard; peer != qpAddr {
		t.Errorf("the other side heard %v", peer)
	}

	go io.Copy(io.Discard, b)
	go io.WriteString(b, strings.Repeat("x", len(qpAddrText)+1))
	if peer, err := qpAddr.Exchange(a); err == nil || strings.Contains(err.Error(), "\n") {
		t.Errorf("%v, %v", peer, err)
	}
	a.SetDeadline(time.Now().Add(10 * time.Millisecond))
	var timeout net.Error
	if peer, err := qpAddr.Exchange(a); !errors.As(err, &timeout) || !timeout.Timeout() {
		t.Errorf("%v, %v", peer, err)
	}
}
