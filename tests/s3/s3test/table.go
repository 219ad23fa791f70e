package s3test

import "testing"

// Row runs the tests of a row of the table: what judges, what it does with this library, and on which
// device.
func Row(t *testing.T, judge, way, device string, run func(t *testing.T)) {
	t.Helper()
	t.Run(device, func(t *testing.T) {
		t.Attr("judge", judge)
		t.Attr("way", way)
		t.Attr("device", device)
		run(t)
	})
}

// Case runs a test of a row, such as one of a size.
func Case(t *testing.T, name string, run func(t *testing.T)) {
	t.Helper()
	t.Run(name, func(t *testing.T) {
		t.Attr("case", name)
		run(t)
	})
}
