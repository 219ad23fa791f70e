package uapi

// Table has values by small numbers. A new value gets the lowest free one, as in the kernel.
type Table[T any] struct {
	Values []*T // nil where a number is free
	free   int  // no number below it is free
}

// Add adds a value and returns its number.
func (t *Table[T]) Add(v *T) uint32 {
	for t.free < len(t.Values) && t.Values[t.free] != nil {
		t.free++
	}
	if t.free == len(t.Values) {
		t.Values = append(t.Values, nil)
	}
	t.Values[t.free] = v
	return uint32(t.free)
}

// Get returns the value with a number, or nil.
func (t *Table[T]) Get(n uint32) *T {
	if uint64(n) < uint64(len(t.Values)) {
		return t.Values[n]
	}
	return nil
}

// Remove frees a number.
func (t *Table[T]) Remove(n uint32) {
	t.Values[n] = nil
	t.free = min(t.free, int(n))
}
