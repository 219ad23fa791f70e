package labtest

import (
	"context"
	"errors"
	"math/rand/v2"
	"testing"
	"time"
)

// Close closes c when the test ends. The test fails if that fails.
func Close(t testing.TB, c interface{ Close() error }) {
	t.Helper()
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
}

// Within returns a context that ends with the test, or after d.
func Within(t testing.TB, d time.Duration) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), d)
	t.Cleanup(cancel)
	return ctx
}

// Until waits until ok returns true, and ends the test if that takes a minute.
func Until(t testing.TB, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(time.Minute); !ok(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("waited too long for %s", what)
		}
	}
}

// Check ends the test if one of the errors is not nil.
func Check(t testing.TB, errs ...error) {
	t.Helper()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
}

// DialAccept calls dial and accept at the same time, and returns both ends.
func DialAccept[T any](t testing.TB, dial, accept func() (T, error)) (dialed, accepted T) {
	t.Helper()
	done := make(chan error, 1)
	go func() {
		var err error
		accepted, err = accept()
		done <- err
	}()
	dialed = Must(dial())(t)
	Check(t, <-done)
	return dialed, accepted
}

// RandomBytes returns n random bytes, which are the same for the same seed.
func RandomBytes(seed, n int) []byte {
	b := make([]byte, n)
	rand.NewChaCha8([32]byte{byte(seed), byte(seed >> 8)}).Read(b)
	return b
}

// BitsDiffer tests that each bit differs between two of some values of the same length. Of 40 random ones it does
// but once in 10^9 runs.
func BitsDiffer(t testing.TB, values [][]byte) {
	t.Helper()
	for k := range values[0] {
		var differ byte
		for _, v := range values {
			differ |= v[k] ^ values[0][k]
		}
		if differ != 0xff {
			t.Errorf("byte %d of %d values has only the bits %#x that differ", k, len(values), differ)
		}
	}
}

// Must returns a function that returns v, or ends the test if err is not nil.
func Must[T any](v T, err error) func(testing.TB) T {
	return func(t testing.TB) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

// Made is like Must, and closes v when the test ends, as Close does.
func Made[T interface{ Close() error }](v T, err error) func(testing.TB) T {
	return func(t testing.TB) T {
		t.Helper()
		Must(v, err)(t)
		Close(t, v)
		return v
	}
}
