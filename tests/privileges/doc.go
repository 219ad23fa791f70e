// Package privileges has the tests of programs that change their credentials, as
// servers do that start as root.
package privileges
