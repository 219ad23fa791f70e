package noescape

import "testing"

type summer interface{ sum([]int) int }

type adder struct{ depth int }

// sum grows the stack, which moves s.
func (a adder) sum(s []int) (n int) {
	if a.depth > 0 {
		var room [1024]int
		room[a.depth%len(room)] = a.depth
		return adder{a.depth - 1}.sum(s) + room[0]
	}
	for i := range s {
		n += s[i]
		s[i] = 0
	}
	return n
}

// TestSlice passes slices of the stack to an interface.
func TestSlice(t *testing.T) {
	impl := summer(adder{})
	if n := testing.AllocsPerRun(10, func() {
		numbers := [...]int{1, 2, 3}
		if got := impl.sum(Slice(numbers[:])); got != 6 || numbers[2] != 0 {
			t.Errorf("sum %d, left %v", got, numbers)
		}
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
	impl = adder{500}
	done := make(chan bool)
	go func() { // with a small stack
		defer close(done)
		numbers := [...]int{4, 5, 6}
		if got := impl.sum(Slice(numbers[:])); got != 15 || numbers[0] != 0 {
			t.Errorf("after the stack moved: sum %d, left %v", got, numbers)
		}
	}()
	<-done
	if s := Slice([]int(nil)); s != nil || len(Slice([]int{})) != 0 {
		t.Errorf("of nil: %v", s)
	}
}
