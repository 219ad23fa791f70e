//go:build linux

package check

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/netip"
	"slices"
	"testing"
	"testing/synctest"
	"time"
	"unicode"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/internal/endpoint"
	"github.com/goverbs/verbs/internal/labtest"
	"github.com/goverbs/verbs/internal/scenario"
	"github.com/goverbs/verbs/soft"
	"github.com/goverbs/verbs/verbstest"
)

// said is a connection to a peer that has sent all its data, and takes what it gets.
type said struct {
	net.Conn
	in io.Reader
}

func (c said) Read(b []byte) (int, error)       { return c.in.Read(b) }
func (c said) Write(b []byte) (int, error)      { return len(b), nil }
func (c said) SetReadDeadline(time.Time) error  { return nil }
func (c said) SetWriteDeadline(time.Time) error { return nil }

// FuzzAnswer has a client of verbs check -s with any messages: the server plays its roles with whatever
// address and keys they have, and does so within the time of each. It has no connection manager, whose
// goroutines would stay: what uses it is left out.
func FuzzAnswer(f *testing.F) {
	f.Add([]byte(`{"scenario":"none"}` + "\n" + `{"end":{"error":"no"}}` + "\n"))
	address, err := json.Marshal(message{Address: endpoint.Address{QP: &verbs.QPAddr{QPNum: 17, GID: verbs.GID{15: 9}}, Addr: 4096, RKey: 1}})
	if err != nil {
		f.Fatal(err)
	}
	f.Add(fmt.Appendf(nil, "{\"scenario\":\"SEND\"}\n%s\n%[1]s\n{\"end\":{}}\n", address))
	all := scenario.List
	f.Cleanup(func() { scenario.List = all })
	scenario.List = slices.DeleteFunc(slices.Clone(all), func(s scenario.Scenario) bool { return s.CM })
	f.Fuzz(func(t *testing.T, b []byte) {
		for line := range bytes.Lines(b) {
			var m message
			if json.Unmarshal(line, &m) == nil && m.Measure {
				t.Skip()
			}
		}
		synctest.Test(t, func(t *testing.T) {
			network := verbstest.NewNetwork(verbstest.Options{})
			defer network.Close()
			d := labtest.Must(soft.New(soft.Options{Name: "fuzz0", Network: network, Addrs: []netip.Addr{netip.MustParseAddr("10.0.0.1")}}))(t)
			defer d.Close()
			p := labtest.Must((&Cmd{Device: "fuzz0"}).open(t.Context()))(t)
			defer p.Dev.Close()
			begun := time.Now()
			if err := newLink(said{in: bytes.NewReader(b)}, false).answer(t.Context(), p); err == nil {
				t.Error("no end of the messages")
			}
			if took := time.Since(begun); took > time.Duration(1+bytes.Count(b, []byte("\n")))*patience {
				t.Errorf("%q takes %v", b, took)
			}
		})
	})
}

// FuzzPeer has a server of verbs check with any messages, all of which the report shows without control
// characters.
func FuzzPeer(f *testing.F) {
	f.Add([]byte(`{"hello":{"version":"\u001b[2J","device":"mlx5_0\u0007","features":["\n"],"ports":[{"port":1,"state":"\u009b2J","used":true}]}}` + "\n" +
		`{"end":{"error":"\u001b[2J","completions":[{"status":12}]}}` + "\n" + `{"end":{"error":"no","unsupported":true}}` + "\n"))
	f.Add([]byte(`{"hello":{}}` + "\n" + `{"end":{}}` + "\n" + `{"scenario":"x"}` + "\n" + `{"end":null}` + "\n"))
	f.Fuzz(func(t *testing.T, b []byte) {
		var text bytes.Buffer
		out := &printer{w: &text, width: 80, verbose: true}
		l := newLink(said{in: bytes.NewReader(b)}, true)
		m, err := l.swap(message{Hello: &machine{}})
		if err == nil && m.Hello != nil {
			out.machine("peer", m.Hello)
		}
		for err == nil {
			var o outcome
			var peers verdict
			if peers, err = l.finish(verdict{}); err == nil {
				o.result(verdict{}, peers)
				out.outcome(o)
			}
		}
		for _, c := range text.String() {
			if unicode.IsControl(c) && c != '\n' {
				t.Fatalf("%q prints %q", b, &text)
			}
		}
	})
}
