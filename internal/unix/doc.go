// Package unix has what this module's packages use of [golang.org/x/sys/unix]. On systems other
// than Linux it has the same names, so that these packages build there too: system calls then fail
// with an error that matches [verbs.ErrNoRDMA] and [errors.ErrUnsupported].
//
//	uverbs, cm, mmap, ... ──► unix ──► golang.org/x/sys/unix   on Linux
//	                               ──► an error                elsewhere
package unix
