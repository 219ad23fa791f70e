package provider

import (
	"os"
	"testing"
	"unsafe"
)

// TestRecords: no two records overlap or share a cache line, and one that comes back is zeroed.
func TestRecords(t *testing.T) {
	r := Records{Size: 2 * MinRecord}
	defer r.Close()
	seen := map[uintptr]bool{}
	n := 2*os.Getpagesize()/r.Size + 1
	var last []byte
	for range n {
		b, err := r.Get()
		if err != nil {
			t.Fatal(err)
		}
		if at := uintptr(unsafe.Pointer(&b[0])); len(b) != r.Size || at%uintptr(r.Size) != 0 || seen[at] {
			t.Fatalf("record of %d bytes at %#x", len(b), at)
		} else {
			seen[at] = true
		}
		last = b
	}
	free := r.Free()
	last[3] = 1
	r.Put(nil)
	r.Put(last)
	if got := r.Free(); got != free+1 {
		t.Errorf("%d free records, want %d", got, free+1)
	}
	if b, err := r.Get(); err != nil || &b[0] != &last[0] || b[3] != 0 {
		t.Errorf("record %v: %v", b, err)
	}
}

func TestRoundUp(t *testing.T) {
	for n, want := range map[int]int{-1: 1, 0: 1, 1: 1, 2: 2, 3: 4, 64: 64, 65: 128} {
		if got := RoundUp(n); got != want {
			t.Errorf("RoundUp(%d) = %d, want %d", n, got, want)
		}
	}
}

// TestExclude: Exclude holds the lock that Take takes, of SingleThreaded queues too.
func TestExclude(t *testing.T) {
	for _, single := range []bool{false, true} {
		var c Completions
		c.SingleThreaded = single
		lock := &c.Gate
		if single {
			lock = &c.Taker
		}
		c.Exclude()
		if lock.TryLock() {
			t.Fatalf("SingleThreaded %v: the lock is free", single)
		}
		c.Allow()
		if !lock.TryLock() {
			t.Fatalf("SingleThreaded %v: the lock is not free", single)
		}
	}
}
