// Package unix has what this module's packages use of [golang.org/x/sys/unix]. Calls on files of
// package virtual run Go code in this process. On systems other than Linux it has the same names,
// so that these packages build there too: system calls then fail with an error that matches
// [verbs.ErrNoRDMA] and [errors.ErrUnsupported], and memory is Go's.
//
//	uverbs, cm, mmap, ... ──► unix ──► virtual                 virtual files, on all systems
//	                               ──► golang.org/x/sys/unix   on Linux
//	                               ──► an error                elsewhere
package unix
