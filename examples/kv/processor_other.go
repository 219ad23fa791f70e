//go:build !unix

package main

import "time"

func processorTime() time.Duration { return 0 }
