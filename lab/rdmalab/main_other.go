//go:build !linux

package main

import (
	"fmt"
	"os"
	"runtime"
)

func main() {
	fmt.Fprintf(os.Stderr, "rdmalab runs on Linux only, not on %s\n", runtime.GOOS)
	os.Exit(1)
}
