package soft_test

import (
	"errors"
	"net/netip"
	"strings"
	"syscall"
	"testing"

	"github.com/goverbs/verbs/soft"
	"github.com/goverbs/verbs/uverbs"
)

// TestBestGID chooses an address that peers can reach, in any order of the device's.
func TestBestGID(t *testing.T) {
	for want, addrs := range map[string][]string{
		"10.9.0.1":  {"127.0.0.1", "::1", "fd00::1", "10.9.0.1"},
		"fd00::1":   {"127.0.0.1", "fd00::1"},
		"fe80::1":   {"::1", "127.0.0.1", "fe80::1"},
		"127.0.0.1": {"::1", "127.0.0.1"},
	} {
		var list []netip.Addr
		for _, a := range addrs {
			list = append(list, netip.MustParseAddr(a))
		}
		s := newEndpoint(t, newDevice(t, soft.Options{Addrs: list}))
		gid, err := s.ctx.FindGID(1, netip.Addr{})
		link := gid.GID.Addr().IsLinkLocalUnicast() // the device has another one, of its GUID
		if err != nil || gid.GID.Addr().String() != want && !(want == "fe80::1" && link) {
			if !(want == "127.0.0.1" && link) {
				t.Errorf("of %v: %v, %v", addrs, gid.GID.Addr(), err)
			}
		}
		s.close(t)
	}
}

// TestFamilies connects a QP with an IPv4 address to one with an IPv6 address.
func TestFamilies(t *testing.T) {
	d := newDevice(t, soft.Options{Addrs: []netip.Addr{netip.MustParseAddr("10.9.0.1"), netip.MustParseAddr("fd00::1")}})
	s := newEndpoint(t, d)
	defer s.close(t)
	remote := must(s.qp.AddrOn(must(s.ctx.FindGID(1, netip.MustParseAddr("fd00::1")))(t)))(t)
	err := s.qp.Connect(must(s.qp.Addr(1))(t), remote, uverbs.ConnectOptions{})
	if !errors.Is(err, syscall.EINVAL) || !strings.Contains(err.Error(), "no path from 10.9.0.1, which is IPv4, to fd00::1, which is IPv6") {
		t.Error(err)
	}
}
