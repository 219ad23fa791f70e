//go:build linux

package rsock_test

import (
	"fmt"
	"io"
	"testing"
	"time"

	"github.com/goverbs/verbs/internal/labtest"
	"github.com/goverbs/verbs/rsock"
)

// BenchmarkPingPong measures a message and its echo, BenchmarkStream one direction. Both
// ends are in this process.
func BenchmarkPingPong(b *testing.B) {
	for _, device := range []string{labtest.RXE, labtest.SIW} {
		for _, size := range []int{64, 4096, 65536} {
			for _, spin := range []string{"-1ns", "10us", "100us"} {
				b.Run(fmt.Sprintf("%s/%d/spin=%s", device, size, spin), func(b *testing.B) {
					c1, c2 := benchPair(b, device, spin)
					go io.Copy(struct{ io.Writer }{c2}, struct{ io.Reader }{c2})
					buf := make([]byte, size)
					for b.Loop() {
						if _, err := c1.Write(buf); err != nil {
							b.Fatal(err)
						}
						if _, err := io.ReadFull(c1, buf); err != nil {
							b.Fatal(err)
						}
					}
				})
			}
		}
	}
}

func BenchmarkStream(b *testing.B) {
	for _, device := range []string{labtest.RXE, labtest.SIW} {
		for _, size := range []int{64, 4096, 65536} {
			b.Run(fmt.Sprintf("%s/%d", device, size), func(b *testing.B) {
				c1, c2 := benchPair(b, device, "10us")
				go io.Copy(io.Discard, c2)
				buf := make([]byte, size)
				b.SetBytes(int64(size))
				for b.Loop() {
					if _, err := c1.Write(buf); err != nil {
						b.Fatal(err)
					}
				}
			})
		}
	}
}

func benchPair(b *testing.B, device, spin string) (c1, c2 *rsock.Conn) {
	b.Helper()
	labtest.Require(b)
	c1, c2, err := pair(device, rsock.Options{SpinTime: labtest.Must(time.ParseDuration(spin))(b)})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { c1.Close(); c2.Close() })
	return c1, c2
}
