package uverbs

import "iter"

// children are the objects below one. Most have one at most, a CQ its QP, which
// takes no map.
type children struct {
	one  *object
	more map[*object]struct{}
}

func (c *children) add(o *object) {
	if c.one == nil {
		c.one = o
		return
	}
	if c.more == nil {
		c.more = map[*object]struct{}{}
	}
	c.more[o] = struct{}{}
}

func (c *children) remove(o *object) {
	if c.one == o {
		c.one = nil
		return
	}
	delete(c.more, o)
}

func (c *children) none() bool { return c.one == nil && len(c.more) == 0 }

func (c *children) all() iter.Seq[*object] {
	return func(yield func(*object) bool) {
		if c.one != nil && !yield(c.one) {
			return
		}
		for o := range c.more {
			if !yield(o) {
				return
			}
		}
	}
}
