//go:build linux

package connectx

import (
	"github.com/goverbs/verbs/lab/connectx/internal/ifc"
	"github.com/goverbs/verbs/lab/internal/pcidev"
)

// objects are the objects of a kind, and the commands about them.
type objects[T any] struct{ pcidev.Objects[T] }

// table returns o. As a method of a part that embeds objects, it is the argument of on and drop.
func (o *objects[T]) table() *objects[T] { return o }

// clear removes all objects. end, if not nil, is called for each to release its resources.
func (o *objects[T]) clear(end func(T) ifc.Status) {
	o.Clear(func(v T) {
		if end != nil {
			end(v)
		}
	})
}

// give adds an object and writes its number to the command's output.
func (o *objects[T]) give(v T, first, last uint32, c *call, num ifc.Field) (uint32, ifc.Status) {
	n, ok := o.Add(v, first, last)
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
		v, ok := of(p).Get(num.U32(c.in))
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
		v, ok := of(p).Get(num.U32(c.in))
		if !ok {
			return ifc.StatusBadResErr
		}
		if end != nil {
			if st := end(v); st != ifc.StatusOk {
				return st
			}
		}
		of(p).Remove(num.U32(c.in))
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
