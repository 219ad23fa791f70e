package main

import "runtime"

// node is one of those that a heap consists of.
type node struct {
	left, right *node
	_           [256 - 16]byte
}

// grow makes a heap of so many bytes, or nearly.
func grow(bytes int) *node {
	root := new(node)
	level := []*node{root}
	for size := 2 * 256; size < bytes; size *= 2 {
		next := make([]*node, 0, 2*len(level))
		for _, n := range level {
			n.left, n.right = new(node), new(node)
			next = append(next, n.left, n.right)
		}
		level = next
	}
	return root
}

// collect collects garbage all the time, and keeps the heap alive.
func collect(heap *node) {
	for {
		runtime.GC()
		runtime.KeepAlive(heap)
	}
}
