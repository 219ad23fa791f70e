package rconn

// fifo is a queue that reuses its memory.
type fifo[T any] struct {
	items []T // the length is a power of two
	head  uint
	tail  uint
}

func (f *fifo[T]) len() int { return int(f.tail - f.head) }

func (f *fifo[T]) push(v T) {
	if f.len() == len(f.items) {
		bigger := make([]T, max(16, 2*len(f.items)))
		n := f.len()
		for i := range n {
			bigger[i] = f.pop()
		}
		f.items, f.head, f.tail = bigger, 0, uint(n)
	}
	f.items[f.tail&uint(len(f.items)-1)] = v
	f.tail++
}

func (f *fifo[T]) pop() T {
	p := &f.items[f.head&uint(len(f.items)-1)]
	v := *p
	var none T
	*p = none
	f.head++
	return v
}
