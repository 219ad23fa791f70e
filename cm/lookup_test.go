//go:build linux

package cm_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/cm"
	"github.com/goverbs/verbs/internal/labtest"
)

func TestLookup(t *testing.T) {
	labtest.RequireBoth(t)
	labtest.Each(t, func(t *testing.T, device string) {
		p, err := cm.Lookup(t.Context(), labtest.AddrOf(device))
		if labtest.IWARP(t, device) { // it has a route, but no port space for datagrams
			t.Log(p, err)
		}
		if err != nil || p.Device.Name != device || p.Port != 1 || p.Local.String() != labtest.AddrOf(device) {
			t.Errorf("%+v, %v", p, err)
		}
	})
}

func TestNoRoute(t *testing.T) {
	labtest.RequireKernel(t)
	_, err := cm.Lookup(within(t, 10*time.Second), "192.0.2.1")
	if !errors.Is(err, verbs.ErrNoRoute) || !strings.Contains(err.Error(), "no RDMA device on route to 192.0.2.1; devices: rxe0 on v0 (10.9.0.1 fd00:9::1), siw0") {
		t.Error(err)
	}
}
