//go:build linux

package connectx

import (
	"bytes"
	"math/bits"
	"sync/atomic"
)

// traffic counts the frames of a class (struct mlx5_ifc_traffic_counter_bits).
type traffic struct {
	packets, octets atomic.Uint64
	sizes           [10]atomic.Uint64 // by sizeOf
}

func (t *traffic) add(frame []byte) {
	t.packets.Add(1)
	t.octets.Add(uint64(len(frame)))
	t.sizes[sizeOf(len(frame))].Add(1)
}

// sizeOf returns the index of a frame's counter by size, as in RFC 2819: up to 64, 127, 255, 511, 1023,
// 1518, 2047, 4095, 8191 and 10239 bytes, with the check sequence of 4 bytes.
func sizeOf(n int) int {
	n += 4
	switch i := max(bits.Len(uint(n))-6, 0); {
	case n <= 64:
		return 0
	case n <= 1518:
		return min(i, 5)
	case n <= 2047:
		return 6
	default:
		return min(i+1, 9)
	}
}

// sumOf returns the sums of several classes.
func sumOf(list []traffic) (packets, octets uint64) {
	for i := range list {
		packets += list[i].packets.Load()
		octets += list[i].octets.Load()
	}
	return packets, octets
}

func class(frame []byte) int {
	switch {
	case bytes.Equal(frame[:6], []byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff}):
		return broadcast
	case frame[0]&1 != 0:
		return multicast
	}
	return unicast
}

// Classes of frames, by their destination.
const (
	unicast = iota
	multicast
	broadcast
)
