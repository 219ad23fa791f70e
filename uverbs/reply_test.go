package uverbs_test

import (
	"net/netip"
	"slices"
	"testing"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/internal/labtest"
	"github.com/goverbs/verbs/soft"
	"github.com/goverbs/verbs/uverbs"
	"github.com/goverbs/verbs/verbstest"
)

// FuzzReplyAH makes the address handle for the answer to a datagram with any header, or none.
func FuzzReplyAH(f *testing.F) {
	device := labtest.Must(soft.New(soft.Options{
		Network: verbstest.NewNetwork(verbstest.Options{TraceLimit: -1}), Addrs: []netip.Addr{netip.MustParseAddr("10.9.0.1"), netip.MustParseAddr("fd00:9::1")},
	}))(f)
	labtest.Close(f, device)
	dev := labtest.Must(uverbs.Open(device.Name()))(f)
	labtest.Close(f, dev)
	pd := labtest.Must(dev.AllocPD())(f)
	labtest.Close(f, pd)
	ipv4 := append(make([]byte, 20), 0x45, 0x20, 0, 152, 0x12, 0x34, 0x40, 0, 64, 17, 0x14, 0x08, 10, 9, 0, 7, 10, 9, 0, 1)
	ipv6 := []byte{0x60, 0x12, 0x34, 0x56, 0, 8, 17, 64, 0xfd, 0, 0, 9, 23: 7, 24: 0xfd, 26: 0, 27: 9, 39: 1}
	f.Add(ipv4, uint16(verbs.WCGRH), uint16(0))
	f.Add(ipv6, uint16(verbs.WCGRH|verbs.WCIPv6), uint16(9))
	f.Add(ipv6[:39], uint16(verbs.WCGRH), uint16(0))
	group4, group6 := slices.Concat(ipv4[:36], []byte{239, 0, 0, 7}), slices.Concat(ipv6[:24], []byte{0xff, 0xe, 39 - 24: 7})
	for i, grh := range [][]byte{ipv4, ipv6, group4, group6} {
		ah := labtest.Must(pd.CreateReplyAH(1, &verbs.WC{Flags: verbs.WCGRH}, grh))(f)
		if index := int(ah.Attr().SGIDIndex); index != i%2 || ah.Close() != nil {
			f.Errorf("header %d: from GID %d", i, index)
		}
	}
	f.Fuzz(func(t *testing.T, grh []byte, flags, slid uint16) {
		ah, err := pd.CreateReplyAH(1, &verbs.WC{Flags: verbs.WCFlags(flags), SLID: slid}, grh)
		if err == nil {
			err = ah.Close()
		}
		if err != nil && err.Error() == "" {
			t.Fatalf("%T %v", err, err)
		}
	})
}
