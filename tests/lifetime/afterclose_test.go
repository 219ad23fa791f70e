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

// closedObject is a closed object, and what its methods return if not an error that matches
// net.ErrClosed.
type closedObject struct {
	object     any
	noError    string // methods that return no error, as there is nothing to do
	wantErrors map[string]error
	skip       string // methods that must not be called on a closed object
	args       []any  // instead of those of other objects
}

// argsByType returns the arguments of methods, by type. Other arguments are zero.
func argsByType(t *testing.T, device string) (map[reflect.Type]any, func()) {
	s := newObjectSet(t, device)
	ch := labtest.Must(cm.DefaultTransport().NewChannel())(t)
	args := []any{
		[]byte("12345678"), 1, uint32(1), time.Second,
		[]verbs.SendWR{{Opcode: verbs.OpSend}}, []verbs.RecvWR{{}}, make([]verbs.WC, 2), &verbs.WC{}, s.mw, ch,
		uverbs.CQOptions{Depth: 4}, uverbs.SRQOptions{MaxWR: 1, MaxSGE: 1}, uverbs.BindOptions{MR: s.mr, Length: 8}, netip.MustParseAddrPort(labtest.AddrOf(device) + ":0"), netip.MustParseAddr("239.1.2.3"),
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

// callArgs returns the arguments for a method.
func callArgs(typ reflect.Type, args map[reflect.Type]any) []reflect.Value {
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
		done <- m.Call(callArgs(m.Type(), args))
	}()
	var out []reflect.Value
	select {
	case out = <-done:
	case <-time.After(waitTimeout):
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
		args, release := argsByType(t, device)
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
						checkErrorText(t, err)
					}
					want, other := c.wantErrors[name]
					switch {
					case !has:
					case other:
						if !errors.Is(err, want) {
							t.Errorf("%v, want %v", err, want)
						}
					case listed(c.noError, name):
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

// checkErrorText checks that an error has one line and names the operation and the object.
func checkErrorText(t *testing.T, err error) {
	t.Helper()
	e, ok := errors.AsType[*verbs.Error](err)
	_, post := errors.AsType[*verbs.PostError](err)
	if !post && (!ok || e.Op == "" || strings.Contains(e.Op, " ") || e.Object == "" && e.Device == "") || strings.Contains(err.Error(), "\n") {
		t.Errorf("%T %+[1]v is no *verbs.Error, or does not say what was attempted", err)
	}
}

// closedObjects returns an object of each type, which is closed.
func closedObjects(t *testing.T, device string) []closedObject {
	s := newObjectSet(t, device)
	s.close(t)
	all := []closedObject{
		// Counters and P_Keys come from sysfs, which has no contexts.
		{object: s.ctx, noError: "Close Counters PKeys", skip: "PKeyIndex"},
		{object: s.pd, noError: "Close", args: []any{uverbs.QPOptions{SendCQ: s.cq, RecvCQ: s.cq}}},
		{object: s.ch, noError: "Close FD"}, {object: s.cq, noError: "Close"},
		// Word and Word64 panic, as the memory is gone.
		{object: s.mr, noError: "Close", skip: "Word Word64"},
	}
	if s.srq != nil {
		all = append(all, closedObject{object: s.srq, noError: "Close"})
	}
	if s.mw == nil {
		all = append(all, closedObject{object: s.qp, noError: "Close", skip: "BindMW", wantErrors: map[string]error{"Connect": errors.ErrUnsupported}})
	} else {
		all = append(all, closedObject{object: s.qp, noError: "Close"})
		all = append(all, closedObject{object: s.mw, noError: "Close"}, closedObject{object: s.ah, noError: "Close"})
	}

	ch := labtest.Must(cm.DefaultTransport().NewChannel())(t)
	id := labtest.Must(ch.NewID(0))(t)
	id.Close()
	ch.Close()
	all = append(all, closedObject{object: id, noError: "Close Leave"},
		closedObject{object: ch, noError: "Close FD", wantErrors: map[string]error{"Accept": unix.EINVAL, "Connect": unix.EINVAL}})
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
		closedObject{object: l, noError: "Close Shutdown"},
		closedObject{object: a, noError: "Close", skip: "Err Reason"}) // return why it ended
	if !labtest.IWARP(t, device) {
		e := labtest.Must((&cm.Dialer{PortSpace: cm.PortSpaceUDP, LocalAddr: netip.MustParseAddrPort(labtest.AddrOf(device) + ":0")}).Join(ctx, "239.1.2.3", false))(t)
		d := labtest.Must(cm.NewDatagrams(e, 64))(t)
		e.Close()
		all = append(all, closedObject{object: d})
	}

	cl := labtest.Must(rconn.Listen(ctx, labtest.AddrOf(device)+":0"))(t)
	cl.Close()
	ca, cb := conns(t, device)
	region := labtest.Must(ca.Alloc(64, rconn.ReadWrite))(t)
	region.Close()
	cb.Close()
	ca.Close()
	all = append(all, closedObject{object: cl, noError: "Close Shutdown"}, closedObject{object: ca, noError: "Close", args: []any{
		rconn.RemoteRegion{Len: 64, Access: rconn.ReadWrite}.At(0), rconn.RemoteRegion{Len: 64, Access: rconn.ReadWrite}, region.All(),
	}}, closedObject{object: region, noError: "Close"})

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
		closedObject{object: ml.Loop, noError: "Close"}, closedObject{object: ma, noError: "Close Disconnect Shutdown", skip: "Post"},
		closedObject{object: ln, noError: "Close"}, closedObject{object: buf, noError: "Free Err", wantErrors: map[string]error{"SetLen": rmsg.ErrBuffer}})

	rl := labtest.Must(rsock.Listen("rdma", labtest.AddrOf(device)+":0"))(t)
	rl.Close()
	ra, rb := streams(t, device)
	rb.SetLinger(0)
	rb.Close()
	ra.Close()
	return append(all, closedObject{object: rl, noError: "Shutdown"}, closedObject{object: ra})
}
