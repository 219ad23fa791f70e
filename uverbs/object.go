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

// object manages the lifetime of one kernel object. It is separate from the Go value that
// programs hold, so that the value can be collected and the object then released, in the
// order that the kernel requires.
type object struct {
	device  string
	name    objectName
	destroy func() error // destroys the kernel's object; not called after it succeeded
	tree    *tree
	num     uint64 // in the order of creation

	mu     sync.RWMutex // calls in progress read-lock, Close locks; see enterAll
	closed bool

	pinned bool // lives as long as its parent unless closed
	logged bool // has been logged as unreachable
	stack  []byte

	// Guarded by the tree's mutex:
	parents     []link
	children    *link // the newest
	unreachable bool  // to be closed when nothing depends on it
	detached    bool  // from its parents, as it is closed
}

// objectName is the name of an object, such as "QP 17", which is formatted when it is needed.
type objectName struct {
	format string
	num    uint32
}

func (n objectName) String() string {
	if !strings.Contains(n.format, "%") {
		return n.format
	}
	return fmt.Sprintf(n.format, n.num)
}

// debugLeaks records where objects are made, and logs unreachable ones to slog.Default if
// the context has no logger.
var debugLeaks = strings.Contains(os.Getenv("VERBS_DEBUG"), "leaks")

// link joins an object to one of its parents, as an element of the list of its children. A map
// would cost each connection some hundred bytes more.
type link struct {
	parent, child *object
	prev, next    *link
}

// join adds the child to its parent. The caller holds the tree's mutex.
func (l *link) join() {
	if l.next = l.parent.children; l.next != nil {
		l.next.prev = l
	}
	l.parent.children = l
}

// leave removes the child from its parent. The caller holds the tree's mutex.
func (l *link) leave() {
	if l.prev != nil {
		l.prev.next = l.next
	} else {
		l.parent.children = l.next
	}
	if l.next != nil {
		l.next.prev = l.prev
	}
	l.prev, l.next = nil, nil
}

// newObject makes an object that destroy destroys, below its parents, each of which is named
// once. The caller has entered them.
func newObject(device string, name objectName, destroy func() error, parents ...*object) *object {
	o := &object{device: device, name: name, destroy: destroy}
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
	o.tree.lastNum++
	o.num = o.tree.lastNum
	o.parents = make([]link, len(parents))
	for i, p := range parents {
		o.parents[i] = link{parent: p, child: o}
		o.parents[i].join()
	}
	return o
}

// stopAndDestroy stops the queues, some of which may be nil, and runs destroy. If it
// fails, the queues are started again.
func stopAndDestroy(destroy func() error, queues ...provider.Queue) error {
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

// enter prevents the object from being closed until exit.
func (o *object) enter(op string) error {
	o.mu.RLock()
	if o.closed {
		o.mu.RUnlock()
		return o.fail(op, verbs.ErrClosed)
	}
	return nil
}

func (o *object) exit() { o.mu.RUnlock() }

// do runs f for op, during which the object cannot be closed.
func (o *object) do(op string, f func() error) error {
	if err := o.enter(op); err != nil {
		return err
	}
	defer o.exit()
	if err := f(); err != nil {
		return o.fail(op, err)
	}
	return nil
}

// get is do for a function that returns a value.
func get[T any](o *object, op string, f func() (T, error)) (v T, err error) {
	err = o.do(op, func() (err error) {
		v, err = f()
		return err
	})
	return v, err
}

// enterAll sorts objects of a context by the order of their creation and enters them. A waiting
// Close blocks further readers, so two calls that entered the same objects in different orders
// could block each other, and so could a call that entered an object twice. Calls that have entered
// a PD or a QP may enter the context, to explain an error: none enters one of these after the
// context.
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

// fail wraps err, the error of op.
func (o *object) fail(op string, err error) *verbs.Error {
	verb, object := sys.SplitOp(op, o.name.String())
	return &verbs.Error{Op: verb, Device: o.device, Object: object, Err: explain(err), Hint: hint(op, err)}
}

// close releases the object unless it has children.
func (o *object) close() error {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.closed {
		return nil
	}
	if err := o.checkUnused("close"); err != nil {
		return err
	}
	if err := o.destroy(); err != nil {
		return o.fail("destroy", err)
	}
	o.closed = true
	o.detach()
	return nil
}

func (o *object) isClosed() bool {
	o.mu.RLock()
	defer o.mu.RUnlock()
	return o.closed
}

// transfer closes the object without destroying the kernel's object, which take passes to another
// object below the same parents.
func (o *object) transfer(op string, take func(parents []*object) error) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.closed {
		return o.fail(op, verbs.ErrClosed)
	}
	if err := o.checkUnused(op); err != nil {
		return err
	}
	parents := make([]*object, len(o.parents))
	for i := range parents {
		parents[i] = o.parents[i].parent
	}
	if err := take(parents); err != nil {
		return o.fail(op, err)
	}
	o.closed = true
	o.detach()
	return nil
}

func (o *object) checkUnused(op string) error {
	o.tree.mu.Lock()
	defer o.tree.mu.Unlock()
	if o.children == nil {
		return nil
	}
	const most = 16 // a PD may have 100,000 regions
	var names []string
	others := 0
	for l := o.children; l != nil; l = l.next {
		if len(names) < most {
			names = append(names, l.child.name.String())
		} else {
			others++
		}
	}
	slices.Sort(names)
	if others > 0 {
		names = append(names, fmt.Sprintf("%d more", others))
	}
	return o.fail(op, fmt.Errorf("%w by %s", verbs.ErrInUse, strings.Join(names, ", ")))
}

// detach removes the object from its parents, and closes unreachable objects that it kept open.
func (o *object) detach() {
	o.tree.mu.Lock()
	defer o.tree.mu.Unlock()
	o.detached = true
	for i := range o.parents {
		l := &o.parents[i]
		l.leave()
		if !o.pinned || l.parent.children == nil { // other pinned children are closable already
			o.tree.closeAsync(l.parent.closable())
		}
	}
}

// renumber changes the number in the object's name.
func (o *object) renumber(num uint32) {
	o.tree.mu.Lock()
	defer o.tree.mu.Unlock()
	o.name.num = num
}

// reparent replaces one of the object's parents.
func (o *object) reparent(from, to *object) {
	o.tree.mu.Lock()
	defer o.tree.mu.Unlock()
	l := &o.parents[slices.IndexFunc(o.parents, func(l link) bool { return l.parent == from })]
	l.leave()
	l.parent = to
	l.join()
}

// closable returns the objects that can be closed once o is unreachable: itself if it has no
// children, or its children if all are pinned, the newest first, so that a window is closed before
// the region to which it may be bound. The caller holds the tree's mutex.
func (o *object) closable() []*object {
	if !o.unreachable {
		return nil
	}
	if o.children == nil {
		return []*object{o}
	}
	var pinned []*object
	for l := o.children; l != nil; l = l.next {
		if !l.child.pinned {
			return nil
		}
		pinned = append(pinned, l.child)
	}
	slices.SortFunc(pinned, func(a, b *object) int { return cmp.Compare(b.num, a.num) })
	return pinned
}
