//go:build linux

package cm_test

import (
	"errors"
	"fmt"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/cm"
	"github.com/goverbs/verbs/internal/labtest"
)

// TestResolveTimeout dials with timeouts that the kernel's unit, a millisecond, does not express.
func TestResolveTimeout(t *testing.T) {
	labtest.Require(t)
	addr := labtest.Addr + ":7471"
	if _, err := (&cm.Dialer{ResolveTimeout: -time.Second}).Dial(t.Context(), addr); !errors.Is(err, verbs.ErrRange) {
		t.Errorf("with a negative timeout: %v", err)
	}
	// It may be too short, but is valid.
	if _, err := (&cm.Dialer{ResolveTimeout: time.Microsecond}).Dial(t.Context(), addr); !errors.Is(err, syscall.ECONNREFUSED) && !errors.Is(err, syscall.ETIMEDOUT) {
		t.Errorf("with a microsecond: %v", err)
	}
}

// TestResolveNeighbour dials a host whose link-layer address is not known, but which answers
// immediately: that must not take ResolveTimeout.
func TestResolveNeighbour(t *testing.T) {
	labtest.RequireKernel(t)
	labtest.Shell(t, `ip netns add there
		ip link add near type veth peer name far netns there
		ip addr add 10.9.7.1/24 dev near
		ip link set near up
		ip -n there addr add 10.9.7.2/24 dev far
		ip -n there link set far up`)
	t.Cleanup(func() { labtest.Shell(t, "ip netns del there") })
	for _, kind := range []string{"rxe", "siw"} {
		t.Run(kind, func(t *testing.T) {
			labtest.Shell(t, "rdma link add near type "+kind+" netdev near")
			t.Cleanup(func() { labtest.Shell(t, "rdma link delete near") })
			d := cm.Dialer{ResolveTimeout: 20 * time.Second, ConnectTimeout: 50 * time.Millisecond}
			for range labtest.Rounds(3, 1) {
				labtest.Shell(t, "ip neigh flush dev near")
				start := time.Now()
				_, err := d.Dial(t.Context(), "10.9.7.2:7471")
				if text := fmt.Sprint(err); !strings.Contains(text, ": connect: ") || time.Since(start) > 10*time.Second {
					t.Errorf("%v after %v, want an error of connect", err, time.Since(start))
				}
			}
		})
	}
}
