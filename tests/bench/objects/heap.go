package main

import (
	"fmt"
	"os"
	"runtime"
	"runtime/debug"
	"time"
)

// node is a small object with pointers: 64 bytes.
type node struct {
	next *node
	_    [7]uint64
}

// keep makes lists of n bytes in all, and replaces a thousandth of them each 50 ms, so that the garbage
// collector runs each 12 s or so. The function that it returns prints how often it ran, and its pauses.
func keep(n int) (report func()) {
	const lists = 1024
	debug.SetGCPercent(25)
	all := make([]*node, lists)
	renew := func(i int) {
		all[i] = nil
		for range n / lists / 64 {
			all[i] = &node{next: all[i]}
		}
	}
	for i := range all {
		renew(i)
	}
	var before runtime.MemStats
	runtime.ReadMemStats(&before)
	go func() {
		for i := 0; ; i++ {
			renew(i % lists)
			time.Sleep(50 * time.Millisecond)
		}
	}()
	return func() {
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		fmt.Fprintf(os.Stderr, "heap of %d MiB, collected %d times, with %v of pauses\n", m.HeapAlloc>>20, m.NumGC-before.NumGC, time.Duration(m.PauseTotalNs-before.PauseTotalNs))
	}
}
