// Package faults tests failures: bad input of every kind returns its documented error, and
// leaks nothing.
package faults
