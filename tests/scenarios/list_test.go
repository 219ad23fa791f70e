package scenarios

import (
	"errors"
	"slices"
	"testing"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/internal/endpoint"
	"github.com/goverbs/verbs/internal/labtest"
	"github.com/goverbs/verbs/internal/scenario"
	"github.com/goverbs/verbs/rdmatest"
	"github.com/goverbs/verbs/uverbs"
)

// TestScenarios plays the scenarios that verbs check plays as well, and those of this process, while
// another connection continues to work.
func TestScenarios(t *testing.T) {
	labtest.RequireBoth(t)
	labtest.Each(t, func(t *testing.T, device string) {
		port := endpoint.Port{Dev: labtest.OpenDevice(t, device)}
		a, b := labtest.NewPair(t, device, rdmatest.PairOptions{Events: true})
		for i, s := range slices.Concat(scenario.List, here) {
			t.Run(s.Name, func(t *testing.T) {
				t.Log("rdma-core:", s.Core)
				if slices.Contains(s.Features, uverbs.FeatureDMABuf) && port.Dev.Probe(uverbs.FeatureDMABuf) == nil && !hasUDMABuf() {
					t.Skip("the kernel has no /dev/udmabuf")
				}
				if _, err := s.Judge(t.Context(), port); err != nil {
					t.Error(err)
				}
				_, rerr := b.PostRecv(verbs.RecvWR{ID: uint64(i)})
				_, serr := a.QP.PostSend(verbs.SendWR{Opcode: verbs.OpSend, Flags: verbs.SendSignaled})
				_, cerr := a.SendCQ.Next(t.Context())
				wc, err := b.RecvCQ.Next(t.Context())
				if err := errors.Join(rerr, serr, cerr, err); err != nil || wc.ID != uint64(i) {
					t.Errorf("another connection: %+v, %v", wc, err)
				}
			})
		}
	})
}

// BenchmarkScenarios measures how long each takes, with the objects that it makes.
func BenchmarkScenarios(b *testing.B) {
	port := endpoint.Port{Dev: labtest.Open(b)}
	for _, s := range scenario.List {
		b.Run(s.Name, func(b *testing.B) {
			if err := s.Missing(port.Dev); err != nil {
				b.Skip(err)
			}
			for b.Loop() {
				labtest.Check(b, s.Loopback(b.Context(), port))
			}
		})
	}
}
