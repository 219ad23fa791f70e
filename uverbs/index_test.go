package uverbs_test

import (
	"errors"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/internal/labtest"
	"github.com/goverbs/verbs/uverbs"
)

func TestIndex(t *testing.T) {
	labtest.Require(t)
	for _, d := range labtest.Must(uverbs.Devices())(t) {
		link := labtest.Must(netlink.RdmaLinkByName(d.Name))(t)
		if i, err := d.Index(); err != nil || i != int(link.Attrs.Index) {
			t.Errorf("%s: %d, %v, want %d", d.Name, i, err, link.Attrs.Index)
		}
	}
	if _, err := (uverbs.Device{Name: "nosuch"}).Index(); !errors.Is(err, verbs.ErrNoDevice) {
		t.Errorf("no such device: %v", err)
	}
}
