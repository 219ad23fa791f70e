//go:build !race

package labtest

// Race reports whether the race detector is built in. With it, code allocates that otherwise does not.
const Race = false
