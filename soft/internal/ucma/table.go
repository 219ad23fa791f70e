package ucma

// table has values by small numbers. A new value gets the lowest free one.
type table[T any] struct {
	values []*T // nil where a number is free
	free   int  // no number below it is free
}

// add adds a value and returns its number.
func (t *table[T]) add(v *T) uint32 {
	for t.free < len(t.values) && t.values[t.free] != nil {
		t.free++
	}
	if t.free == len(t.values) {
		t.values = append(t.values, nil)
	}
	t.values[t.free] = v
	return uint32(t.free)
}

// get returns the value with a number, or nil.
func (t *table[T]) get(n uint32) *T {
	if uint64(n) < uint64(len(t.values)) {
		return t.values[n]
	}
	return nil
}

// remove frees a number.
func (t *table[T]) remove(n uint32) {
	t.values[n] = nil
	t.free = min(t.free, int(n))
}
