package main

import "runtime"

// node is a node of the tree that fills a heap.
type node struct {
	left, right *node
	_           [256 - 16]byte
}

// grow allocates a heap of about the given number of bytes.
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

// collect continuously collects garbage, and keeps the heap alive.
func collect(heap *node) {
	for {
		runtime.GC()
		runtime.KeepAlive(heap)
	}
}
