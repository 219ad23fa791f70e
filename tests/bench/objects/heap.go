package main

import (
	"runtime/debug"
	"time"
)

// node is a small object with pointers: 64 bytes.
type node struct {
	next *node
	_    [7]uint64
}

// keep makes lists of n bytes in all, and replaces a thousandth of them each 50 ms, so that the garbage
// collector runs each 12 s or so.
func keep(n int) {
	if n == 0 {
		return
	}
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
	go func() {
		for i := 0; ; i++ {
			renew(i % lists)
			time.Sleep(50 * time.Millisecond)
		}
	}()
}
