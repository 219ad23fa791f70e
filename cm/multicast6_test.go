//go:build linux

package cm_test

import (
	"errors"
	"net/netip"
	"testing"
	"time"

	"github.com/goverbs/verbs/cm"
	"github.com/goverbs/verbs/internal/labtest"
)

// TestMulticastIPv6 joins a group that kernels support on InfiniBand but not on
// RoCE, where they return an internal errno.
func TestMulticastIPv6(t *testing.T) {
	labtest.RequireBoth(t)
	d := cm.Dialer{LocalAddr: netip.MustParseAddrPort("[fd00:9::1]:0")}
	m, err := d.Join(within(t, 20*time.Second), "ff05::1234", false)
	if err == nil {
		m.Close()
	}
	if !errors.Is(err, errors.ErrUnsupported) {
		t.Error(err)
	}
}
