//go:build linux

package rmsg_test

import (
	"fmt"
	"testing"

	"github.com/goverbs/verbs/internal/labtest"
	"github.com/goverbs/verbs/rmsg"
)

// BenchmarkThreshold sends messages of one size whole and announced, to choose the
// default of Options.Eager.
func BenchmarkThreshold(b *testing.B) {
	labtest.Require(b)
	for _, device := range []string{labtest.RXE, labtest.SIW} {
		for size := 1 << 10; size <= 512<<10; size *= 2 {
			for how, eager := range map[string]int{"whole": size, "announced": 64} {
				b.Run(fmt.Sprintf("%s/%dKiB/%s", device, size>>10, how), func(b *testing.B) {
					opt := rmsg.Options{Eager: eager, Credits: 16}
					c, s := pair(b, device, opt, opt)
					stream(b, c, s, size, 100) // until all memory is there
					b.ResetTimer()
					stream(b, c, s, size, b.N)
				})
			}
		}
	}
}

// BenchmarkStream sends messages of one size with default options.
func BenchmarkStream(b *testing.B) {
	labtest.Require(b)
	for _, device := range []string{labtest.RXE, labtest.SIW} {
		for _, size := range []int{64, 1 << 10, 4 << 10, 8 << 10, 16 << 10, 64 << 10, 1 << 20} {
			b.Run(fmt.Sprintf("%s/%d", device, size), func(b *testing.B) {
				c, s := pair(b, device, rmsg.Options{}, rmsg.Options{})
				stream(b, c, s, size, 100) // until all memory is there
				b.ResetTimer()
				stream(b, c, s, size, b.N)
			})
		}
	}
}

// stream sends n messages.
func stream(b *testing.B, c, s *rmsg.Conn, size, n int) {
	b.SetBytes(int64(size))
	go func() {
		message := make([]byte, size)
		for range n {
			if err := c.Send(b.Context(), message); err != nil {
				return
			}
		}
	}()
	for range n {
		m, err := s.Recv(b.Context())
		if err != nil {
			b.Fatal(err)
		}
		m.Free()
	}
}

// BenchmarkPingPong measures the time of a message and its echo.
func BenchmarkPingPong(b *testing.B) {
	labtest.Require(b)
	for _, device := range []string{labtest.RXE, labtest.SIW} {
		b.Run(device, func(b *testing.B) {
			c, s := pair(b, device, rmsg.Options{}, rmsg.Options{})
			go func() {
				for {
					m, err := s.Recv(b.Context())
					if err != nil || s.Send(b.Context(), m.Bytes()) != nil {
						return
					}
					m.Free()
				}
			}()
			message := make([]byte, 64)
			b.ReportAllocs()
			for b.Loop() {
				if err := c.Send(b.Context(), message); err != nil {
					b.Fatal(err)
				}
				m, err := c.Recv(b.Context())
				if err != nil {
					b.Fatal(err)
				}
				m.Free()
			}
		})
	}
}
