package lifetime

import (
	"bytes"
	"context"
	"errors"
	"io"
	"iter"
	"maps"
	"net"
	"net/netip"
	"path"
	"reflect"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/cm"
	"github.com/goverbs/verbs/internal/labtest"
	"github.com/goverbs/verbs/rconn"
	"github.com/goverbs/verbs/rmsg"
	"github.com/goverbs/verbs/rsock"
	"github.com/goverbs/verbs/uverbs"
)

// closed is a closed object, and what its methods return if not an error that matches
// net.ErrClosed.
type closed struct {
	object any
	fine   string // methods that return no error, as there is nothing to do
	others map[string]error
	skip   string // methods that must not be called on a closed object
	args   []any  // instead of those of other objects
}

// arguments returns the arguments of methods, by type. Other arguments are zero.
func arguments(t *testing.T, device string) (map[reflect.Type]any, func()) {
	s := newStack(t, device)
	ch := labtest.Must(cm.NewChannel())(t)
	args := []any{
		[]byte("12345678"), 1, uint32(1), time.Second,
		[]verbs.SendWR{{Opcode: verbs.OpSend}}, []verbs.RecvWR{{}}, make([]verbs.WC, 2), &verbs.WC{}, s.mw, ch,
		uverbs.CQOptions{Depth: 4}, uverbs.Features()[0], uverbs.SRQOptions{MaxWR: 1, MaxSGE: 1}, uverbs.BindOptions{MR: s.mr, Length: 8}, netip.MustParseAddrPort(labtest.AddrOf(device) + ":0"), netip.MustParseAddr("239.1.2.3"),
		labtest.AddrOf(device) + ":1", time.Now().Add(time.Second), verbs.StateErr,
	}
	byType := map[reflect.Type]any{
		reflect.TypeFor[context.Context](): within(t),
		reflect.TypeFor[io.Reader]():       bytes.NewReader([]byte("12345678")),
		reflect.TypeFor[io.Writer]():       io.Discard,
	}
	for _, a := range args {
		byType[reflect.TypeOf(a)] = a
	}
	return byType, func() {
		s.close(t)
		ch.Close()
	}
}

// inputs returns the arguments for a method.
func inputs(typ reflect.Type, args map[reflect.Type]any) []reflect.Value {
	n := typ.NumIn()
	if typ.IsVariadic() {
		n--
	}
	in := make([]reflect.Value, n)
	for i := range in {
		in[i] = reflect.Zero(typ.In(i))
		if a, ok := args[typ.In(i)]; ok {
			in[i] = reflect.ValueOf(a)
		}
	}
	return in
}

// call calls a method and returns its error, and whether it has an error result.
func call(t *testing.T, m reflect.Value, args map[reflect.Type]any) (err error, has bool) {
	t.Helper()
	done := make(chan []reflect.Value, 1)
	go func() {
		defer func() {
			if p := recover(); p != nil {
				t.Errorf("panics: %v", p)
				done <- nil
			}
		}()
		done <- m.Call(inputs(m.Type(), args))
	}()
	var out []reflect.Value
	select {
	case out = <-done:
	case <-time.After(patience):
		t.Error("hangs")
	}
	if len(out) == 0 {
		return nil, false
	}
	last := out[len(out)-1]
	if last.Type() == reflect.TypeFor[error]() {
		err, _ = last.Interface().(error)
		return err, true
	}
	// Sequences report the error in their last value.
	switch seq := last.Interface().(type) {
	case iter.Seq2[uverbs.AsyncEvent, error]:
		for _, err = range seq {
		}
		return err, true
	case iter.Seq2[[]byte, error]:
		for _, err = range seq {
		}
		return err, true
	}
	return nil, false
}

// TestAfterClose calls every method of closed objects.
func TestAfterClose(t *testing.T) {
	labtest.EachClean(t, func(t *testing.T, device string) {
		args, release := arguments(t, device)
		defer release()
		for _, c := range closedObjects(t, device) {
			args := maps.Clone(args)
			for _, a := range c.args {
				args[reflect.TypeOf(a)] = a
			}
			v := reflect.ValueOf(c.object)
			listed := func(list, name string) bool { return strings.Contains(" "+list+" ", " "+name+" ") }
			for i := range v.NumMethod() {
				name := v.Type().Method(i).Name
				if listed(c.skip, name) {
					continue
				}
				t.Run(v.Type().Elem().String()+"."+name, func(t *testing.T) {
					err, has := call(t, v.Method(i), args)
					pkg := path.Base(v.Type().Elem().PkgPath())
					posts := listed("BindMW PostRecv PostSend", name) && err == verbs.ErrClosed
					if err != nil && (pkg == "uverbs" || pkg == "cm") && !posts {
						named(t, err)
					}
					want, other := c.others[name]
					switch {
					case !has:
					case other:
						if !errors.Is(err, want) {
							t.Errorf("%v, want %v", err, want)
						}
					case listed(c.fine, name):
						if err != nil {
							t.Error(err)
						}
					case !errors.Is(err, net.ErrClosed):
						t.Errorf("%v, want one that matches net.ErrClosed", err)
					}
				})
			}
		}
	})
}

// named checks that an error has one line and names the operation and the object.
func named(t *testing.T, err error) {
	t.Helper()
	e, ok := errors.AsType[*verbs.Error](err)
	_, post := errors.AsType[*verbs.PostError](err)
	if !post && (!ok || e.Op == "" || strings.Contains(e.Op, " ") || e.Object == "" && e.Device == "") || strings.Contains(err.Error(), "\n") {
		t.Errorf("%T %+[1]v is no *verbs.Error, or does not say what was attempted", err)
	}
}

// closedObjects returns an object of each type, which is closed.
func closedObjects(t *testing.T, device string) []closed {
	s := newStack(t, device)
	s.close(t)
	all := []closed{
		// Counters and P_Keys come from sysfs, which has no contexts.
		{object: s.ctx, fine: "Close Counters PKeys", skip: "PKeyIndex"},
		{object: s.pd, fine: "Close", args: []any{uverbs.QPOptions{SendCQ: s.cq, RecvCQ: s.cq}}},
		{object: s.ch, fine: "Close FD"}, {object: s.cq, fine: "Close"},
		// SGE and Word panic, as slicing does: Bytes is nil.
		{object: s.mr, fine: "Close", skip: "Word"}, {object: s.srq, fine: "Close"},
	}
	if s.mw == nil {
		all = append(all, closed{object: s.qp, fine: "Close", skip: "BindMW", others: map[string]error{"Connect": errors.ErrUnsupported}})
	} else {
		all = append(all, closed{object: s.qp, fine: "Close"})
		all = append(all, closed{object: s.mw, fine: "Close"}, closed{object: s.ah, fine: "Close"})
	}

	ch := labtest.Must(cm.NewChannel())(t)
	id := labtest.Must(ch.NewID())(t)
	id.Close()
	ch.Close()
	all = append(all, closed{object: id, fine: "Close"}, closed{object: ch, fine: "Close"})
	loop := labtest.Must(cm.NewLoop())(t)
	loopID := labtest.Must(loop.NewID())(t)
	loopID.Close()
	loop.Close()
	all = append(all, closed{object: loopID, fine: "Close", others: map[string]error{"Next": unix.EINVAL}},
		closed{object: loop, fine: "Close", others: map[string]error{"Accept": unix.EINVAL, "Connect": unix.EINVAL}})
	ctx := within(t)
	l := labtest.Must(cm.Listen(ctx, labtest.AddrOf(device)+":0"))(t)
	l.Close()
	// These keep open what connections share.
	one, two := endpoints(t, device, cm.Options{})
	labtest.Close(t, one)
	labtest.Close(t, two)
	a, b := endpoints(t, device, cm.Options{})
	b.Close()
	a.Close()
	all = append(all,
		closed{object: l, fine: "Close Shutdown"},
		closed{object: a, fine: "Close Announce", skip: "Err"}) // returns why it ended
	if device == labtest.RXE {
		e := labtest.Must((&cm.Dialer{PortSpace: cm.PortSpaceUDP, LocalAddr: netip.MustParseAddrPort(labtest.Addr + ":0")}).Join(ctx, "239.1.2.3", false))(t)
		d := labtest.Must(cm.NewDatagrams(e.Endpoint, 64))(t)
		e.Close()
		all = append(all, closed{object: d})
	}

	cl := labtest.Must(rconn.Listen(ctx, labtest.AddrOf(device)+":0"))(t)
	cl.Close()
	ca, cb := conns(t, device)
	region := labtest.Must(ca.Alloc(64, rconn.ReadWrite))(t)
	region.Close()
	cb.Close()
	ca.Close()
	all = append(all, closed{object: cl, fine: "Close"}, closed{object: ca, fine: "Close", args: []any{
		rconn.RemoteRegion{Len: 64, Access: rconn.ReadWrite}.At(0), rconn.RemoteRegion{Len: 64, Access: rconn.ReadWrite}, region.All(),
	}}, closed{object: region, fine: "Close"})

	ml := newLoop(t, rmsg.Options{})
	ma, mb, ln := sockets(t, device, ml)
	buf := labtest.Must(ma.Alloc(16))(t)
	buf.Free()
	ma.Close()
	<-ma.Done()
	<-mb.Done()
	ln.Close()
	ml.end(t)
	all = append(all,
		closed{object: ml.Loop, fine: "Close"}, closed{object: ma, fine: "Close Disconnect Shutdown", skip: "Post SendBuffer Wait"},
		closed{object: ln, fine: "Close"}, closed{object: buf, fine: "Free Err", others: map[string]error{"SetLen": rmsg.ErrBuffer}})

	rl := labtest.Must(rsock.Listen("rdma", labtest.AddrOf(device)+":0"))(t)
	rl.Close()
	ra, rb := streams(t, device)
	rb.SetLinger(0)
	rb.Close()
	ra.Close()
	return append(all, closed{object: rl}, closed{object: ra})
}
