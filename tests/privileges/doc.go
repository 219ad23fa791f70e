// Package privileges tests programs that change their credentials, as servers do that start
// as root.
package privileges
