package docs

import (
	"go/types"
	"slices"
	"strings"
	"testing"
)

// dials are the functions of each package that connect and listen. Those of rsock are as in
// package net.
var dials = map[string][]string{
	"cm": {
		"func Dial(ctx context.Context, addr string) (*cm.Endpoint, error)",
		"func (*cm.Dialer).Dial(ctx context.Context, addr string) (*cm.Endpoint, error)",
		"func Listen(ctx context.Context, addr string) (*cm.Listener, error)",
		"func (*cm.ListenConfig).Listen(ctx context.Context, addr string) (*cm.Listener, error)",
		"func (*cm.Listener).Accept(ctx context.Context) (*cm.Request, error)",
	},
	"rconn": {
		"func Dial(ctx context.Context, addr string) (*rconn.Conn, error)",
		"func (*rconn.Dialer).Dial(ctx context.Context, addr string) (*rconn.Conn, error)",
		"func Listen(ctx context.Context, addr string) (*rconn.Listener, error)",
		"func (*rconn.ListenConfig).Listen(ctx context.Context, addr string) (*rconn.Listener, error)",
		"func (*rconn.Listener).Accept(ctx context.Context) (*rconn.Request, error)",
	},
	"rmsg": {
		"func Dial(ctx context.Context, addr string) (*rmsg.Socket, error)",
		"func (*rmsg.Dialer).Dial(ctx context.Context, addr string) (*rmsg.Socket, error)",
		"func Listen(ctx context.Context, addr string) (*rmsg.Listener, error)",
		"func (*rmsg.ListenConfig).Listen(ctx context.Context, addr string) (*rmsg.Listener, error)",
		"func (*rmsg.Listener).Accept(ctx context.Context) (*rmsg.Socket, error)",
	},
	"rsock": {
		"func Dial(network, addr string) (net.Conn, error)",
		"func (*rsock.Dialer).Dial(network, addr string) (net.Conn, error)",
		"func (*rsock.Dialer).DialContext(ctx context.Context, network, addr string) (net.Conn, error)",
		"func (*rsock.ListenConfig).Listen(ctx context.Context, network, addr string) (net.Listener, error)",
		"func Listen(network, addr string) (net.Listener, error)",
		"func (*rsock.Listener).Accept() (net.Conn, error)",
	},
}

// observed are the types that have statistics, and logging those that take a logger.
var (
	observed = []string{"cm.Listener", "rconn.Conn", "rmsg.Socket", "rmsg.Loop", "rsock.Conn", "rsock.Listener"}
	logging  = []string{"cm.Dialer", "cm.ListenConfig", "rconn.Dialer", "rconn.ListenConfig", "rmsg.Options", "rsock.Dialer", "rsock.ListenConfig"}
)

// TestConventions checks that the packages that make connections follow the same conventions
// for the functions that dial and listen and for the types of options, that contexts are first
// arguments, and that long-lived objects have Close, a logger and statistics.
func TestConventions(t *testing.T) {
	for _, pkg := range packages(t, "/uverbs", "/cm", "/rconn", "/rmsg", "/rsock") {
		c := conventions{t: t, pkg: pkg}
		for _, n := range pkg.Scope().Names() {
			if obj := pkg.Scope().Lookup(n); obj.Exported() {
				c.check(obj)
			}
		}
		for _, want := range dials[pkg.Name()] {
			if !slices.Contains(c.funcs, want) {
				t.Errorf("there is no %s", want)
			}
		}
	}
}

type conventions struct {
	t     *testing.T
	pkg   *types.Package
	funcs []string
}

func (c *conventions) check(obj types.Object) {
	switch obj := obj.(type) {
	case *types.Func:
		c.function("", obj)
	case *types.Var:
		if !strings.HasPrefix(obj.Name(), "Err") {
			c.t.Errorf("%s.%s is a variable that programs can change", c.pkg.Name(), obj.Name())
		}
	case *types.TypeName:
		typ := c.pkg.Name() + "." + obj.Name()
		methods := map[string]bool{}
		set := types.NewMethodSet(types.NewPointer(obj.Type()))
		for s := range set.Methods() {
			methods[s.Obj().Name()] = true
		}
		for m := range obj.Type().(*types.Named).Methods() {
			if m.Exported() {
				c.function(typ, m)
			}
		}
		fields := map[string]types.Type{}
		if s, ok := obj.Type().Underlying().(*types.Struct); ok {
			c.fields(typ, s, fields)
		}
		if slices.Contains(logging, typ) && (fields["Logger"] == nil || fields["Logger"].String() != "*log/slog.Logger") {
			c.t.Errorf("%s has no Logger", typ)
		}
		if slices.Contains(observed, typ) && !methods["Stats"] {
			c.t.Errorf("%s has no Stats", typ)
		}
		for _, other := range []string{"Destroy", "Free", "Dealloc", "Release"} {
			if methods[other] && typ != "rmsg.Buffer" {
				c.t.Errorf("%s.%s is not called Close", typ, other)
			}
		}
	}
}

// fields collects the exported fields of a structure, those of embedded ones included,
// and checks those of options.
func (c *conventions) fields(typ string, s *types.Struct, found map[string]types.Type) {
	options := strings.HasSuffix(typ, "Options") || strings.HasSuffix(typ, "Dialer") || strings.HasSuffix(typ, "Config")
	for f := range s.Fields() {
		if !f.Exported() {
			continue
		}
		if embedded, ok := f.Type().Underlying().(*types.Struct); ok && f.Embedded() {
			c.fields(typ, embedded, found)
			continue
		}
		found[f.Name()] = f.Type()
		if f.Type().String() == "context.Context" {
			c.t.Errorf("%s.%s keeps a context", typ, f.Name())
		}
		if basic, ok := f.Type().(*types.Basic); ok && options && basic.Info()&types.IsNumeric != 0 && basic.Kind() != types.Int && !bits[typ+"."+f.Name()] {
			c.t.Errorf("%s.%s is a %s, not an int", typ, f.Name(), basic)
		}
		if p, ok := f.Type().(*types.Pointer); ok && options && typ != "uverbs.ReregOptions" { // nil leaves the value unchanged
			if _, ok := p.Elem().Underlying().(*types.Basic); ok {
				c.t.Errorf("%s.%s is a pointer: zero is the default, and a negative number is none", typ, f.Name())
			}
		}
	}
}

// bits are options that are neither sizes nor counts, but fields of packets, addresses and
// numbers that the program chooses.
var bits = map[string]bool{
	"uverbs.BindOptions.ID":              true,
	"uverbs.ConnectOptions.SL":           true,
	"uverbs.ConnectOptions.TrafficClass": true,
	"uverbs.ConnectOptions.FlowLabel":    true,
	"uverbs.MROptions.IOVA":              true,
	"cm.Dialer.TOS":                      true,
	"rconn.Dialer.TOS":                   true,
	"rmsg.Dialer.TOS":                    true,
}

func (c *conventions) function(typ string, f *types.Func) {
	sig := f.Signature()
	recv := ""
	if typ != "" {
		recv = "(" + types.TypeString(sig.Recv().Type(), (*types.Package).Name) + ")."
	}
	c.funcs = append(c.funcs, "func "+recv+f.Name()+strings.TrimPrefix(signature(sig), "func"))
	for i := range sig.Params().Len() {
		if p := sig.Params().At(i); p.Type().String() == "context.Context" && i > 0 {
			c.t.Errorf("%s%s takes a context, not first", recv, f.Name())
		}
	}
	if res := sig.Results(); f.Name() == "Close" && (sig.Params().Len() != 0 || res.Len() != 1 || res.At(0).Type().String() != "error") {
		c.t.Errorf("%sClose%s is no io.Closer", recv, strings.TrimPrefix(signature(sig), "func"))
	}
	_, pointer := types.Unalias(recvType(sig)).(*types.Pointer)
	if strings.HasSuffix(typ, "Dialer") || strings.HasSuffix(typ, "Config") {
		if !pointer {
			c.t.Errorf("%s%s has no pointer receiver", recv, f.Name())
		}
	}
}

func recvType(sig *types.Signature) types.Type {
	if sig.Recv() == nil {
		return nil
	}
	return sig.Recv().Type()
}

// signature formats a signature as go doc does: parameters of one type together.
func signature(sig *types.Signature) string {
	text := types.TypeString(sig, (*types.Package).Name)
	return strings.ReplaceAll(text, "network string, addr string", "network, addr string")
}
