// Package modules checks what the module brings to programs that import it, and that its
// commands can be installed. It publishes the working tree through a module proxy made
// of files, and runs the go command as a stranger would.
package modules
