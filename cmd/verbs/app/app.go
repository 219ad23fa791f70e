// Package app is the command verbs as a function. A program of two lines has it with drivers of
// other modules, for verbs check and all else on their devices:
//
//	package main
//
//	import (
//		_ "example.com/rdma/irdma"
//		"github.com/goverbs/verbs/cmd/verbs/app"
//	)
//
//	func main() { app.Main() }
package app

import "github.com/goverbs/verbs/cmd/verbs/internal/cmdline"

// Main runs the command line of the process as the command verbs does, and ends the process.
func Main() { cmdline.Main() }
