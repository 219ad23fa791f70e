//go:build linux

package connectx

import (
	"maps"
	"slices"
	"sync"

	"github.com/goverbs/verbs/lab/connectx/internal/ifc"
)

// objects has the objects of a kind by the numbers by which the driver names them. Its lock covers
// the table, not the objects.
type objects[T any] struct {
	mu   sync.RWMutex
	m    map[uint32]T
	next uint32
}

// table returns o. As a method of a part that embeds objects, it is the argument of on and drop.
func (o *objects[T]) table() *objects[T] { return o }

// add gives an object a number from first to last. It gives a number again only when it has used all
// others, so that a late reference to a destroyed object does not find another. It reports false if
// all are in use.
func (o *objects[T]) add(v T, first, last uint32) (num uint32, ok bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if uint32(len(o.m)) > last-first {
		return 0, false
	}
	if o.m == nil {
		o.m = map[uint32]T{}
	}
	for {
		if o.next < first || o.next > last {
			o.next = first
		}
		num = o.next
		o.next++
		if _, used := o.m[num]; !used {
			o.m[num] = v
			return num, true
		}
	}
}

// put adds an object with a given number. It reports false if that is in use.
func (o *objects[T]) put(num uint32, v T) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.m == nil {
		o.m = map[uint32]T{}
	}
	if _, used := o.m[num]; used {
		return false
	}
	o.m[num] = v
	return true
}

func (o *objects[T]) get(num uint32) (v T, ok bool) {
	o.mu.RLock()
	defer o.mu.RUnlock()
	v, ok = o.m[num]
	return v, ok
}

func (o *objects[T]) has(num uint32) bool {
	_, ok := o.get(num)
	return ok
}

// remove removes an object from the table. It reports false if there is none.
func (o *objects[T]) remove(num uint32) (v T, ok bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	v, ok = o.m[num]
	delete(o.m, num)
	return v, ok
}

// all returns the objects, in no order.
func (o *objects[T]) all() []T {
	o.mu.RLock()
	defer o.mu.RUnlock()
	return slices.Collect(maps.Values(o.m))
}

// clear removes all objects. end, if not nil, is called for each to release its resources.
func (o *objects[T]) clear(end func(T) ifc.Status) {
	o.mu.Lock()
	all := o.m
	o.m, o.next = nil, 0
	o.mu.Unlock()
	if end != nil {
		for _, v := range all {
			end(v)
		}
	}
}

// give adds an object and writes its number to the command's output.
func (o *objects[T]) give(v T, first, last uint32, c *call, num ifc.Field) (uint32, ifc.Status) {
	n, ok := o.add(v, first, last)
	if !ok {
		return 0, ifc.StatusNoResErr
	}
	num.Set(c.out, uint64(n))
	return n, ifc.StatusOk
}

// alloc returns the handler of a command that allocates a number and nothing else.
func alloc[P any](of func(*P) *objects[struct{}], first, last uint32, num ifc.Field) func(*P, *call) ifc.Status {
	return func(p *P, c *call) ifc.Status {
		_, st := of(p).give(struct{}{}, first, last, c, num)
		return st
	}
}

// on returns the handler of a command about an object of part P, whose number is in field num of the
// input.
func on[P, T any](of func(*P) *objects[T], num ifc.Field, do func(T, *call) ifc.Status) func(*P, *call) ifc.Status {
	return func(p *P, c *call) ifc.Status {
		v, ok := of(p).get(num.U32(c.in))
		if !ok {
			return ifc.StatusBadResErr
		}
		return do(v, c)
	}
}

// drop returns the handler of a command that destroys an object. end, if not nil, releases the
// object's resources, or refuses.
func drop[P, T any](of func(*P) *objects[T], num ifc.Field, end func(T) ifc.Status) func(*P, *call) ifc.Status {
	return func(p *P, c *call) ifc.Status {
		v, ok := of(p).get(num.U32(c.in))
		if !ok {
			return ifc.StatusBadResErr
		}
		if end != nil {
			if st := end(v); st != ifc.StatusOk {
				return st
			}
		}
		of(p).remove(num.U32(c.in))
		return ifc.StatusOk
	}
}

// call is a command under execution.
type call struct {
	op, mod uint16
	in      []byte // at least as long as the structure
	out     []byte // at least as long as the structure; the handler writes behind the first 8 bytes
}

// ignore handles a command about an object without visible effect.
func ignore[T any](T, *call) ifc.Status { return ifc.StatusOk }
