//go:build linux

package rsock_test

import (
	"io"
	"testing"

	"github.com/goverbs/verbs/internal/labtest"
	"github.com/goverbs/verbs/rsock"
)

// BenchmarkWrite measures Write of 1 byte while another goroutine reads.
func BenchmarkWrite(b *testing.B) {
	labtest.Require(b)
	x, y, err := pair(labtest.RoCE, rsock.Options{})
	if err != nil {
		b.Fatal(err)
	}
	done := make(chan struct{})
	go func() { io.Copy(io.Discard, y); close(done) }()
	data := make([]byte, 1)
	b.ReportAllocs()
	for b.Loop() {
		if _, err := x.Write(data); err != nil {
			b.Fatal(err)
		}
	}
	x.Close()
	<-done
	y.Close()
}
