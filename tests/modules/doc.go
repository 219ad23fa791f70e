// Package modules checks which modules a program that imports this one depends on, and that
// the commands can be installed. It publishes the working tree through a module proxy made
// of files, and runs the go command as a user would.
package modules
