package engine

import (
	"maps"
	"slices"
	"sync"

	"github.com/goverbs/verbs/internal/roce"
)

// table contains the objects of one kind by number.
type table[T any] struct {
	mu   sync.RWMutex
	m    map[uint32]*T
	next uint32
}

func (t *table[T]) get(n uint32) *T {
	t.mu.RLock()
	v := t.m[n]
	t.mu.RUnlock()
	return v
}

// add stores in *num a number between lo and hi, and adds v with it. Numbers are used again as late
// as possible. It reports false if all are in use.
func (t *table[T]) add(v *T, num *uint32, lo, hi uint32) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if uint32(len(t.m)) > hi-lo {
		return false
	}
	n := max(t.next, lo)
	for ; ; n++ {
		if n > hi {
			n = lo
		}
		if _, used := t.m[n]; !used {
			break
		}
	}
	*num = n
	t.insert(n, v)
	t.next = n + 1
	return true
}

// addRandom stores in *key a random key whose upper 24 bits are a number between lo and hi,
// and adds v with this number, unless there are limit objects.
func (t *table[T]) addRandom(v *T, key *uint32, lo, hi uint32, limit int) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.m) >= limit {
		return false
	}
	for {
		n := lo + roce.Random()%(hi-lo+1)
		if _, used := t.m[n]; !used {
			*key = n<<8 | roce.Random()&0xff
			t.insert(n, v)
			return true
		}
	}
}

// put adds v as object n. It reports false if there is one.
func (t *table[T]) put(n uint32, v *T) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if _, used := t.m[n]; used {
		return false
	}
	t.insert(n, v)
	return true
}

func (t *table[T]) insert(n uint32, v *T) {
	if t.m == nil {
		t.m = make(map[uint32]*T)
	}
	t.m[n] = v
}

// remove removes object n. It reports false if there was none.
func (t *table[T]) remove(n uint32) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if _, ok := t.m[n]; !ok {
		return false
	}
	delete(t.m, n)
	return true
}

func (t *table[T]) all() []*T {
	t.mu.RLock()
	defer t.mu.RUnlock()
	return slices.Collect(maps.Values(t.m))
}
