package cm_test

import (
	"testing"

	"github.com/goverbs/verbs/cm"
	"github.com/goverbs/verbs/internal/labtest"
	"github.com/goverbs/verbs/uverbs"
)

// TestRetries: a connection gives a peer that is gone up, also if the peer would
// not, unless it is told otherwise.
func TestRetries(t *testing.T) {
	for _, r := range []struct {
		dial, accept   []uint8 // what Options say, if anything
		client, server uint8
	}{
		{nil, nil, 6, 6},
		{[]uint8{7}, nil, 7, 6},
		{[]uint8{2}, nil, 2, 2},
		{nil, []uint8{7}, 6, 7},
		{[]uint8{7}, []uint8{1}, 7, 1},
	} {
		options := func(count []uint8) (opt cm.Options) {
			if count != nil {
				opt.RetryCount = &count[0]
			}
			return opt
		}
		client, server := pair(t, labtest.Addr+":0", options(r.dial), options(r.accept))
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
