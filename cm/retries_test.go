//go:build linux

package cm_test

import (
	"testing"

	"github.com/goverbs/verbs/cm"
	"github.com/goverbs/verbs/internal/labtest"
	"github.com/goverbs/verbs/uverbs"
)

// TestRetries checks the retry counts of both QPs: the default is at most 6, even if the
// dialing side asks for 7, so that a peer that is gone is noticed.
func TestRetries(t *testing.T) {
	for _, r := range []struct {
		dial, accept   int // RetryCount of Options
		client, server uint8
	}{
		{0, 0, 6, 6},
		{7, 0, 7, 6},
		{2, 0, 2, 2},
		{0, 7, 6, 7},
		{7, 1, 7, 1},
		{-1, 0, 0, 0},
		{7, -1, 7, 0},
	} {
		client, server := pair(t, labtest.Addr+":0", cm.Options{RetryCount: r.dial}, cm.Options{RetryCount: r.accept})
		for _, side := range []struct {
			qp   *uverbs.QP
			want uint8
		}{{client.QP, r.client}, {server.QP, r.server}} {
			if attr := labtest.Must(side.qp.Query())(t); attr.RetryCount != side.want {
				t.Errorf("dialed with %v, accepted with %v: retries %d, want %d", r.dial, r.accept, attr.RetryCount, side.want)
			}
		}
	}
}
