//go:build linux

package rconn

import (
	"errors"
	"go/ast"
	"go/parser"
	"go/token"
	"net/netip"
	"os"
	"reflect"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/goverbs/verbs/cm"
	"github.com/goverbs/verbs/internal/labtest"
)

// TestListenConfig sets ReuseAddr, and tests that requests beyond the backlog are
// rejected.
func TestListenConfig(t *testing.T) {
	labtest.Each(t, func(t *testing.T, device string) {
		const backlog, dials = 2, 6
		ctx := testContext(t)
		l := labtest.Made((&ListenConfig{Backlog: backlog, ReuseAddr: true}).Listen(ctx, labtest.AddrOf(device)+":0"))(t)
		results := make(chan error, dials)
		for range dials {
			go func() {
				c, err := Dial(ctx, l.Addr().String())
				if err == nil {
					c.Close()
				}
				results <- err
			}()
		}
		for range dials - backlog {
			if err := <-results; !errors.Is(err, syscall.ECONNREFUSED) {
				t.Errorf("beyond the backlog: %v", err)
			}
		}
		for range backlog {
			r := labtest.Must(l.Accept(ctx))(t)
			labtest.Close(t, labtest.Must(r.Accept(ctx, Options{}))(t))
			check(t, <-results)
		}
	})
}

// TestDialer tests that the options of a dial apply to the connection.
func TestDialer(t *testing.T) {
	labtest.Each(t, func(t *testing.T, device string) {
		ctx := testContext(t)
		l := labtest.Made(Listen(ctx, labtest.AddrOf(device)+":0"))(t)
		accepted := make(chan error, 1)
		go func() {
			r, err := l.Accept(ctx)
			if err == nil {
				var c *Conn
				if c, err = r.Accept(ctx, Options{}); err == nil {
					// The peer's RNRRetryCount applies to this side.
					if attr, _ := c.Endpoint().QP.Query(); device == labtest.RXE && attr.RNRRetry != 2 {
						t.Errorf("the acceptor's QP has %+v", attr)
					}
					err = c.AwaitDisconnect(ctx)
					c.Close()
				}
			}
			accepted <- err
		}()
		local := netip.MustParseAddr(labtest.AddrOf(device))
		c := labtest.Must((&Dialer{
			Options:   Options{ResponderResources: 2, InitiatorDepth: 8, RetryCount: 4, RNRRetryCount: 2},
			LocalAddr: netip.AddrPortFrom(local, 0), ResolveTimeout: time.Minute, ConnectTimeout: time.Minute, TOS: 0x68,
		}).Dial(ctx, l.Addr().String()))(t)
		if c.LocalAddr().Addr() != local {
			t.Errorf("from %v", c.LocalAddr())
		}
		attr := labtest.Must(c.Endpoint().QP.Query())(t)
		if device == labtest.RXE && (attr.AV.TrafficClass != 0x68 || attr.MaxRDAtomic != 8 || attr.MaxDestRDAtomic != 2 || attr.RetryCount != 4) {
			t.Errorf("the QP has %+v", attr)
		}
		check(t, c.Close())
		check(t, <-accepted)
		_, err := (&Dialer{LocalAddr: netip.MustParseAddrPort("192.0.2.1:0")}).Dial(ctx, l.Addr().String())
		if err == nil {
			t.Error("dialed from an address that is not this machine's")
		}
	})
}

// TestCMOptions checks that each option of package cm exists here as well, or that the
// documentation of Options lists it as absent.
func TestCMOptions(t *testing.T) {
	if os.Getenv("VERBS_LAB") != "" {
		t.Skip("reads the sources, which need not be here")
	}
	f, err := parser.ParseFile(token.NewFileSet(), "options.go", nil, parser.ParseComments)
	if err != nil {
		t.Fatal(err)
	}
	absent := ""
	for _, d := range f.Decls {
		if g, ok := d.(*ast.GenDecl); ok && g.Tok == token.TYPE {
			_, list, _ := strings.Cut(g.Doc.Text(), "are absent.")
			absent += list
		}
	}
	for here, there := range map[reflect.Type]reflect.Type{
		reflect.TypeFor[Options]():      reflect.TypeFor[cm.Options](),
		reflect.TypeFor[Dialer]():       reflect.TypeFor[cm.Dialer](),
		reflect.TypeFor[ListenConfig](): reflect.TypeFor[cm.ListenConfig](),
	} {
		for i := range there.NumField() {
			name := there.Field(i).Name
			_, has := here.FieldByName(name)
			if said := regexp.MustCompile(`\b` + name + `\b`).MatchString(absent); has == said {
				t.Errorf("%v.%s: in %v %v, documented as absent %v", there, name, here, has, said)
			}
		}
	}
}
