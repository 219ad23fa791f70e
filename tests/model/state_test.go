package model

import (
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/internal/labtest"
	"github.com/goverbs/verbs/uverbs"
)

// node is the model of an object.
type node struct {
	what     string
	obj      interface{ Close() error }
	parents  []*node
	children int
	closed   bool
}

// state is a device with the objects created on it.
type state struct {
	t      *testing.T
	device string
	iwarp  bool
	srqs   bool
	keeps  bool // QPs keep requests until they are connected
	ctx    *node
	nodes  []*node // except ctx; includes closed ones, until there are many
	links  []*link
	in     []byte // what is left for choose
	calls  int
	log    []string
}

// choose returns a number below n, taken from the input.
func (w *state) choose(n int) int {
	if len(w.in) == 0 {
		return 0
	}
	b := int(w.in[0])
	w.in = w.in[1:]
	return b % n
}

// checkCall logs a call and checks its error: nil if want is empty, otherwise one of
// those in want.
func (w *state) checkCall(err error, want []error, format string, args ...any) bool {
	w.calls++
	call := fmt.Sprintf(format, args...)
	w.log = append(w.log, fmt.Sprintf("%s: %v", call, err))
	if len(want) == 0 && err != nil {
		w.fail("%s: %v", call, err)
	}
	if len(want) > 0 && !slices.ContainsFunc(want, func(e error) bool { return errors.Is(err, e) }) {
		w.fail("%s: %v, want %v", call, err, want)
	}
	return err == nil
}

func (w *state) fail(format string, args ...any) {
	w.t.Helper()
	for _, l := range w.log[max(0, len(w.log)-40):] {
		w.t.Log(l)
	}
	w.t.Fatalf(format, args...)
}

// pick returns an object of a type, usually an open one; ok is false if there is none.
func pick[T any](w *state) (n *node, obj T, ok bool) {
	var fit []*node
	closed := w.choose(16) == 0
	for _, n := range w.nodes {
		if _, ok := n.obj.(T); ok && n.closed == closed {
			fit = append(fit, n)
		}
	}
	if len(fit) == 0 {
		return nil, obj, false
	}
	n = fit[w.choose(len(fit))]
	return n, n.obj.(T), true
}

// closedOf returns the errors that a call with these objects must return.
func closedOf(nodes ...*node) []error {
	if slices.ContainsFunc(nodes, func(n *node) bool { return n.closed }) {
		return []error{verbs.ErrClosed}
	}
	return nil
}

// checkCreated records that an object was created from its parents, or checks the error. bad
// reports whether the arguments are bad.
func checkCreated[T interface{ Close() error }](w *state, obj T, err error, bad bool, what string, parents ...*node) {
	want := closedOf(parents...)
	if bad && err != nil {
		var e *verbs.Error
		if w.calls++; !errors.As(err, &e) {
			w.fail("make %s: %v, which is no *Error", what, err)
		}
		return
	}
	if bad {
		w.fail("made %s", what)
	}
	if w.checkCall(err, want, "make %s", what) {
		w.nodes = append(w.nodes, &node{what: fmt.Sprintf("%s #%d", what, w.calls), obj: obj, parents: parents})
		for _, p := range parents {
			p.children++
		}
	}
}

// close closes an object. Close may fail only while other objects depend on it.
func (w *state) close(n *node) {
	var want []error
	if n.children > 0 {
		want = []error{verbs.ErrInUse}
	}
	if n.closed {
		want = nil
	}
	if w.checkCall(n.obj.Close(), want, "close %s", n.what) && !n.closed {
		n.closed = true
		for _, p := range n.parents {
			p.children--
		}
	}
}

func newState(t *testing.T, device string, in []byte) *state {
	ctx := labtest.Must(uverbs.Open(device))(t)
	return &state{t: t, device: device, iwarp: ctx.Device().IWARP(), keeps: labtest.KeepsRequests(t, device), srqs: ctx.Probe(uverbs.FeatureSRQ) == nil, in: in, ctx: &node{what: "context", obj: ctx}}
}

// end closes all remaining objects, leaves first, and the context.
func (w *state) end() {
	for _, l := range w.links {
		l.finish()
	}
	for slices.ContainsFunc(w.nodes, func(n *node) bool { return !n.closed }) {
		for _, n := range w.nodes {
			if !n.closed && n.children == 0 {
				w.close(n)
			}
		}
	}
	w.ctx.children = 0
	w.close(w.ctx)
}

func (w *state) context() *uverbs.Context { return w.ctx.obj.(*uverbs.Context) }

// run makes calls as long as there is input.
func (w *state) run() {
	calls := slices.Concat(objectCalls, trafficCalls)
	for len(w.in) > 0 {
		calls[w.choose(len(calls))](w)
		if len(w.nodes) > 64 {
			w.nodes = slices.DeleteFunc(w.nodes, func(n *node) bool { return n.closed })
		}
		if len(w.nodes) > 64 {
			w.close(w.nodes[w.choose(len(w.nodes))])
		}
	}
	w.end()
}
