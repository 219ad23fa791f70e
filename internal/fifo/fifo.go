// Package fifo has a queue that reuses its memory.
package fifo

// Queue is a queue in a ring that grows. The zero value is empty.
type Queue[T any] struct {
	items []T // the length is a power of two
	head  uint
	tail  uint
}

// Len returns the number of items.
func (q *Queue[T]) Len() int { return int(q.tail - q.head) }

// At returns the i-th item, from the oldest on.
func (q *Queue[T]) At(i int) T { return q.items[(q.head+uint(i))&uint(len(q.items)-1)] }

// Push adds an item.
func (q *Queue[T]) Push(v T) {
	if q.Len() == len(q.items) {
		bigger := make([]T, max(16, 2*len(q.items)))
		n := q.Len()
		for i := range n {
			bigger[i] = q.Pop()
		}
		q.items, q.head, q.tail = bigger, 0, uint(n)
	}
	q.items[q.tail&uint(len(q.items)-1)] = v
	q.tail++
}

// Pop removes and returns the oldest item, which there is.
func (q *Queue[T]) Pop() T {
	p := &q.items[q.head&uint(len(q.items)-1)]
	v := *p
	var none T
	*p = none
	q.head++
	return v
}
