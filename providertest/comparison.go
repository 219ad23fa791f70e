//go:build linux

package providertest

import (
	"bytes"
	"encoding/hex"
	"fmt"
	"math/rand/v2"
	"os/exec"
	"testing"

	"github.com/goverbs/verbs"
)

// Comparison makes the same queues with a C library, by a [Program], and with a driver, posts the same random
// requests to both, and writes the same completions. What the card would see has to be equal, byte
// for byte, and so have the results.
type Comparison struct {
	*Program
	T    testing.TB
	Rand *rand.Rand // of the present queues

	// Describe returns what the present queues are, for errors. It may be nil.
	Describe func() string

	library     string
	unit        int
	mark        string // of the present queues
	differences int    // queues that differed
	different   bool
}

// NewComparison starts a C program for the library with a name, such as "liberdma". Dumps of memory
// begin at multiples of unit bytes, a power of two.
func NewComparison(t testing.TB, cmd *exec.Cmd, library string, unit int) *Comparison {
	t.Helper()
	return &Comparison{Program: Start(t, cmd), T: t, library: library, unit: unit}
}

// Each calls queues with random numbers that seed and i choose, until more returns false or some calls
// have found differences. queues makes queues, uses them as long as they are not Different, and destroys
// them.
func (x *Comparison) Each(seed uint64, more func() bool, queues func(i int)) {
	for i := 0; more() && x.differences < 6; i++ {
		x.Rand, x.different = rand.New(rand.NewPCG(seed, uint64(i))), false
		x.mark = fmt.Sprintf("-seed %d, queues %d", seed, i)
		queues(i)
	}
}

// Different reports whether the present queues have differed: what follows would differ as well.
func (x *Comparison) Different() bool { return x.different }

// Differ reports a difference.
func (x *Comparison) Differ(format string, args ...any) {
	x.T.Helper()
	if !x.different {
		x.differences++
	}
	x.different = true
	what := ""
	if x.Describe != nil {
		what = " (" + x.Describe() + ")"
	}
	x.T.Errorf("%s%s: %s", x.mark, what, fmt.Sprintf(format, args...))
}

// Equal compares memory of the C library with the driver's, and reports a difference with what is there.
func (x *Comparison) Equal(what string, c, driver []byte) bool {
	x.T.Helper()
	if bytes.Equal(c, driver) {
		return true
	}
	at := 0
	for at < min(len(c), len(driver)) && c[at] == driver[at] {
		at++
	}
	from := at &^ (x.unit - 1)
	part := func(b []byte) string { return hex.Dump(b[min(from, len(b)):min(from+128, len(b))]) }
	x.Differ("%s of %d and %d bytes differ at %#x. %s, from %#x on:\n%sGo:\n%s", what, len(c), len(driver), at, x.library, from, part(c), part(driver))
	return false
}

// Check ends the test if a call of the driver has failed that must not.
func (x *Comparison) Check(err error) {
	x.T.Helper()
	if err != nil {
		x.T.Fatal(x.mark, ": ", err)
	}
}

// PutSGL adds a list to an order: its length, and the address, length and key of each element.
func (x *Comparison) PutSGL(list []verbs.SGE) {
	x.Put(uint64(len(list)))
	for _, s := range list {
		x.Put(s.Addr, uint64(s.Length), uint64(s.LKey))
	}
}
