//go:build !amd64

package main

import "time"

var epoch = time.Now()

// tsc is the clock: User-mode Linux, where that would not do, is for amd64 alone.
func tsc() uint64 { return uint64(time.Since(epoch)) }
