// Package faults tests what happens when things go wrong: bad input of every
// kind gives its documented error, and leaves nothing behind.
package faults
