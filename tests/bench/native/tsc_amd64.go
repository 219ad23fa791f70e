package main

// tsc is the processor's time stamp counter: the clock, which is a system call
// on User-mode Linux, would cost more than what is measured.
func tsc() uint64
