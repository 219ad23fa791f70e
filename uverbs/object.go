package uverbs

import (
	"cmp"
	"fmt"
	"log/slog"
	"os"
	"runtime/debug"
	"slices"
	"strings"
	"sync"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/internal/sys"
	"github.com/goverbs/verbs/provider"
)

// object is the life of one kernel object, apart from the Go value that
// programs hold: so that the value can be collected and the object released
// then, in the order that the kernel demands.
type object struct {
	device  string
	what    name
	destroy func() error // the kernel's object; it runs once, if it succeeds
	tree    *tree
	num     uint64 // in the order of creation

	mu     sync.RWMutex // calls in progress read-lock, Close locks; see enterAll
	closed bool

	kept  bool // lives as long as its parent unless closed
	noted bool // that it was forgotten has been logged
	stack []byte

	// Guarded by the tree's mutex:
	parents   []*object
	children  map[*object]struct{}
	forgotten bool // by the program: to be closed when it is due
	left      bool // its parents, as it is closed
}

// name is what an object is called, "QP 17", put together when it is wanted.
type name struct {
	format string
	num    uint32
}

func (n name) String() string {
	if !strings.Contains(n.format, "%") {
		return n.format
	}
	return fmt.Sprintf(n.format, n.num)
}

// debugLeaks records where objects are made, and logs forgotten ones without a logger
// of the context's.
var debugLeaks = strings.Contains(os.Getenv("VERBS_DEBUG"), "leaks")

// newObject makes an object that destroy destroys, below its parents, which callers hold
// with enter.
func newObject(device string, what name, destroy func() error, parents ...*object) *object {
	o := &object{device: device, what: what, destroy: destroy, parents: parents}
	if debugLeaks {
		o.stack = debug.Stack()
	}
	if len(parents) == 0 {
		o.tree = new(tree)
		if debugLeaks {
			o.tree.log.Store(slog.Default())
		}
		return o
	}
	o.tree = parents[0].tree
	o.tree.mu.Lock()
	defer o.tree.mu.Unlock()
	o.tree.made++
	o.num = o.tree.made
	for _, p := range parents {
		p.adopt(o)
	}
	return o
}

// adopt adds a child. The caller holds the tree's mutex.
func (o *object) adopt(child *object) {
	if o.children == nil {
		o.children = map[*object]struct{}{}
	}
	o.children[child] = struct{}{}
}

// stopped runs destroy with queues, of which some may be nil, stopped; if it fails
// they go on.
func stopped(destroy func() error, queues ...provider.Queue) error {
	for _, q := range queues {
		if q != nil {
			q.Stop(true)
		}
	}
	err := destroy()
	for _, q := range queues {
		switch {
		case q == nil:
		case err != nil:
			q.Stop(false)
		default:
			q.Release()
		}
	}
	return err
}

// enter keeps the object from being closed until exit.
func (o *object) enter(op string) error {
	o.mu.RLock()
	if o.closed {
		o.mu.RUnlock()
		return o.fail(op, verbs.ErrClosed)
	}
	return nil
}

func (o *object) exit() { o.mu.RUnlock() }

// enterAll enters several objects of a context, in the order of their creation,
// which it sorts them by. A waiting Close holds up further readers, so two calls
// that entered the same objects in different orders could block each other, and
// so could a call that entered an object twice.
func enterAll(op string, objects []*object) error {
	slices.SortFunc(objects, func(a, b *object) int { return cmp.Compare(a.num, b.num) })
	for i, o := range objects {
		if err := o.enter(op); err != nil {
			exitAll(objects[:i])
			return err
		}
	}
	return nil
}

func exitAll(objects []*object) {
	for _, o := range objects {
		o.exit()
	}
}

// fail wraps err, which came of op.
func (o *object) fail(op string, err error) error {
	verb, object := sys.SplitOp(op, o.what.String())
	return &verbs.Error{Op: verb, Device: o.device, Object: object, Err: err, Hint: hint(op, err)}
}

// close releases the object unless it has children.
func (o *object) close() error {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.closed {
		return nil
	}
	if err := o.childless("close"); err != nil {
		return err
	}
	if err := o.destroy(); err != nil {
		return o.fail("destroy", err)
	}
	o.closed = true
	o.leave()
	return nil
}

func (o *object) isClosed() bool {
	o.mu.RLock()
	defer o.mu.RUnlock()
	return o.closed
}

// hand closes the object without releasing what it stands for: take gives that to
// another object below the same parents, unless it fails.
func (o *object) hand(op string, take func(parents []*object) error) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.closed {
		return o.fail(op, verbs.ErrClosed)
	}
	if err := o.childless(op); err != nil {
		return err
	}
	if err := take(o.parents); err != nil {
		return o.fail(op, err)
	}
	o.closed = true
	o.leave()
	return nil
}

func (o *object) childless(op string) error {
	o.tree.mu.Lock()
	defer o.tree.mu.Unlock()
	if len(o.children) == 0 {
		return nil
	}
	var names []string
	for c := range o.children {
		names = append(names, c.what.String())
	}
	slices.Sort(names)
	return o.fail(op, fmt.Errorf("%w by %s", verbs.ErrInUse, strings.Join(names, ", ")))
}

// leave takes the object from its parents, and closes those that waited for it.
func (o *object) leave() {
	o.tree.mu.Lock()
	defer o.tree.mu.Unlock()
	o.left = true
	for _, p := range o.parents {
		delete(p.children, o)
		if !o.kept || len(p.children) == 0 { // other kept ones are due already
			o.tree.close(p.due())
		}
	}
}

// move puts the object below another parent.
func (o *object) move(from, to *object) {
	o.tree.mu.Lock()
	defer o.tree.mu.Unlock()
	delete(from.children, o)
	to.adopt(o)
	o.parents[slices.Index(o.parents, from)] = to
}

// due returns what can be closed of an object that is forgotten: itself if it
// has no children, its kept children if it has no others. The caller holds the
// tree's mutex.
func (o *object) due() []*object {
	if !o.forgotten {
		return nil
	}
	if len(o.children) == 0 {
		return []*object{o}
	}
	var kept []*object
	for c := range o.children {
		if !c.kept {
			return nil
		}
		kept = append(kept, c)
	}
	return kept
}
