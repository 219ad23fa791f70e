// Package peer decides which of a device's GIDs serves a client, for both protocols.
package peer

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/uverbs"
)

// Table returns the GIDs that a server uses: the one that it is configured with, or else those of port 1.
func Table(dev *uverbs.Context, only verbs.GIDEntry) ([]verbs.GIDEntry, error) {
	if only.Port != 0 {
		return []verbs.GIDEntry{only}, nil
	}
	table, err := dev.GIDTable()
	return slices.DeleteFunc(table, func(e verbs.GIDEntry) bool { return e.Port != 1 }), err
}

// GID returns the server's end of a path to a client's GID: one of the same address family, between which
// there is no path on RoCE, if possible of the same scope, and for RoCE v2. A client without a GID is
// reached by its LID, from any.
func GID(table []verbs.GIDEntry, to verbs.GID) (verbs.GIDEntry, error) {
	score := func(e verbs.GIDEntry) (n int) {
		if e.GID.Addr().IsLinkLocalUnicast() == to.Addr().IsLinkLocalUnicast() {
			n = 2
		}
		if e.Type != verbs.GIDRoCEv1 {
			n++
		}
		return n
	}
	fits := slices.DeleteFunc(slices.Clone(table), func(e verbs.GIDEntry) bool {
		return to != verbs.GID{} && e.GID.Addr().Is4() != to.Addr().Is4()
	})
	if len(fits) == 0 {
		return verbs.GIDEntry{}, fmt.Errorf("the server has %d GIDs, and none of the address family of the client's, %v: give its port such an address", len(table), to)
	}
	return slices.MaxFunc(fits, func(a, b verbs.GIDEntry) int { return cmp.Compare(score(a), score(b)) }), nil
}
