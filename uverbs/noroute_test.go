//go:build linux

package uverbs_test

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/internal/labtest"
	"github.com/goverbs/verbs/uverbs"
)

// TestNoRoute connects to GIDs at which no machine answers, and makes address handles for
// them: the errors contain the GIDs.
func TestNoRoute(t *testing.T) {
	labtest.RequireKernel(t)
	if !slices.Contains(labtest.Addressed(), labtest.RoCE) {
		t.Skip("InfiniBand finds routes by LID")
	}
	ctx := labtest.OpenDevice(t, labtest.RoCE)
	pd := labtest.Made(ctx.AllocPD())(t)
	for addr, gid := range map[string]string{labtest.Addr: "::ffff:" + labtest.Addr + "77", labtest.Addr6Of(labtest.RoCE): labtest.Addr6Of(labtest.RoCE) + ":77"} {
		t.Run(gid, func(t *testing.T) {
			qp := labtest.Made(pd.CreateQP(uverbs.QPOptions{}))(t)
			local := labtest.Must(qp.AddrOn(labtest.Must(ctx.FindGID(1, netip.MustParseAddr(addr)))(t)))(t)
			remote := local
			remote.GID = labtest.Must(verbs.ParseGID(gid))(t)
			_, ah := pd.CreateAH(remote.PathFrom(local))
			for what, err := range map[string]error{"Connect": qp.Connect(local, remote, uverbs.ConnectOptions{}), "CreateAH": ah} {
				if !errors.Is(err, unix.ETIMEDOUT) || !strings.Contains(err.Error(), fmt.Sprintf("no route to GID %s from GID %d of port 1: ", gid, local.GIDIndex)) {
					t.Errorf("%s: %v", what, err)
				}
			}
		})
	}
}
