// Package extents finds room in memory from which blocks of mixed sizes are taken and to which they
// return: by the lowest address that has room, which leaves long runs free while blocks come and go.
package extents

import (
	"cmp"
	"slices"
)

// List has the free runs, by address and never adjacent. The caller locks it. Its slice grows to the
// most runs that there have been, and is kept.
type List []run

type run struct{ at, n int }

// New returns a list in which n bytes from 0 are free.
func New(n int) List { return List{{0, n}} }

// Take removes n bytes from the first run that has as many.
func (l *List) Take(n int) (at int, ok bool) {
	i := slices.IndexFunc(*l, func(r run) bool { return r.n >= n })
	if i < 0 {
		return 0, false
	}
	r := &(*l)[i]
	at = r.at
	if *r = (run{r.at + n, r.n - n}); r.n == 0 {
		*l = slices.Delete(*l, i, i+1)
	}
	return at, true
}

// Put adds n bytes, and joins them with the runs beside them.
func (l *List) Put(at, n int) {
	s := *l
	i, _ := slices.BinarySearchFunc(s, at, func(r run, at int) int { return cmp.Compare(r.at, at) })
	before, behind := i > 0 && s[i-1].at+s[i-1].n == at, i < len(s) && at+n == s[i].at
	switch {
	case before && behind:
		s[i-1].n += n + s[i].n
		*l = slices.Delete(s, i, i+1)
	case before:
		s[i-1].n += n
	case behind:
		s[i] = run{at, n + s[i].n}
	default:
		*l = slices.Insert(s, i, run{at, n})
	}
}
