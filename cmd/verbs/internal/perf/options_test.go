//go:build linux

package perf

import (
	"io"
	"strings"
	"testing"
)

// TestOptions checks that wrong options are rejected before connecting.
func TestOptions(t *testing.T) {
	for args, want := range map[string]string{
		"send lat -s 0":                   "size (-s): 0 is not in 1..8388608",
		"send bw -s 8388609":              "size (-s): 8388609 is not in 1..8388608",
		"send bw -q 0":                    "QPs (-q): 0 is not in 1..256",
		"send bw -q 257":                  "QPs (-q): 257 is not in 1..256",
		"read bw -t 0":                    "tx-depth (-t): 0 is not in 1..16384",
		"read bw -r 20000":                "rx-depth (-r): 20000 is not in 1..16384",
		"write bw -t 4 -l 5":              "post-list (-l): 5 is not in 1..4",
		"write bw -Q 0":                   "cq-mod (-Q): 0 is not in 1..128",
		"send bw -l 5 -r 4":               "post-list (-l): 5 is more than the receives (-r), 4",
		"send lat -n 0":                   "one of them",
		"send lat --iters=-1":             "neither may be negative",
		"send lat --duration=-1s":         "neither may be negative",
		"send lat -D x":                   "invalid duration",
		"send lat --inline=-1":            "inline (-I): -1 is not in 0..65535",
		"read lat -I 8":                   "read has no data to send",
		"write lat -e":                    "use write-imm",
		"send lat -b":                     "unknown flag -b",
		"fetch-add bw -s 4":               "size (-s): atomics are of 8 bytes, not 4",
		"send bw -s 8388608 -q 256":       "256 QPs with messages of 8388608 bytes and queues of 128 and 512 requests need more than 1073741824 bytes of memory",
		"send bw -t 16384 -r 16384 -q256": "queues of 16384 and 16384 requests need more than",
		"send lat --timeout 0s":           "timeout: 0s is not in",
		"send lat -d no-such-device":      "no-such-device: no such RDMA device",
		"cmp-swap lat -a":                 "size (-s): atomics are of 8 bytes, not 2",
		"send twice":                      "unexpected argument twice",
		"cmp-swap lat 10.9.0.1 and more":  "unexpected argument and",
		"send lat --tclass 256 127.0.0.1": "256",
		"send lat --pkey_index=-1":        "P_Key index (--pkey-index): not in 0..65535",
		"send lat --pkey-index 65536":     "P_Key index (--pkey-index): not in 0..65535",
		"send lat --once":                 "for servers only",
		"send lat --interval=-1":          "interval: -1s is below 0",
	} {
		err := command(t.Context(), io.Discard, io.Discard, append(strings.Fields(args), "127.0.0.1")...)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", args, err)
		}
	}
}

// TestQuantum checks that credits leave room for a batch at all depths: otherwise both sides
// would wait for each other.
func TestQuantum(t *testing.T) {
	for rx := 1; rx < 40; rx++ {
		for list := 1; list <= rx; list++ {
			w := work{Op: "send", Mode: modeBW, RxDepth: rx, List: list}
			if uncredited := w.quantum() - 1; uncredited+list > rx {
				t.Errorf("%d receives, %d may not be credited, and %d are posted at a time", rx, uncredited, list)
			}
			if under := rx / w.quantum(); under > w.creditRecvs() {
				t.Errorf("%d credits may be under way, and have %d receives", under, w.creditRecvs())
			}
		}
	}
}

// TestPartition finds the server's key for a client's, of which at least one must be a full member's.
func TestPartition(t *testing.T) {
	keys := []uint16{0xffff, 0, 0x0002, 0x8002, 0x0003}
	for peer, want := range map[uint16]int{0xffff: 0, 0x7fff: 0, 0x8002: 3, 0x0002: 3, 0x8003: 4, 0x8004: -1} {
		if got := partition(keys, peer); got != want {
			t.Errorf("the key for the peer's %#04x is entry %d, want %d", peer, got, want)
		}
	}
}

func TestLayout(t *testing.T) {
	for _, op := range []string{"send", "ud"} {
		for _, size := range []int{1, 8, 63, 64, 65, 4096} {
			w := work{Op: op, Size: size, QPs: 3}
			l := w.layout()
			end := size
			for i := range w.QPs {
				at := l.inOf(i)
				if at < end || at%8 != 0 {
					t.Errorf("%s of %d bytes: QP %d has its memory at %d, after %d", op, size, i, at, end)
				}
				end = at + l.head + size
			}
			if l.total < end || l.total%4 != 0 {
				t.Errorf("%s of %d bytes: %d bytes in all, of %d", op, size, l.total, end)
			}
		}
	}
}

func TestPattern(t *testing.T) {
	b, want := pattern(1000, true), pattern(1000, true)
	if err := checkPattern(b, want); err != nil {
		t.Error(err)
	}
	if err := checkPattern(b, pattern(1000, false)); err == nil {
		t.Error("client and server have the same pattern")
	}
	if err := checkPattern(b[1:], want); err == nil {
		t.Error("data in another place is not seen")
	}
	for _, i := range []int{0, 250, 251, 999} {
		b[i]++
		if err := checkPattern(b, want); err == nil {
			t.Errorf("byte %d is wrong and not seen", i)
		}
		b[i]--
	}
}
