package scenarios

import (
	"errors"
	"slices"
	"testing"

	"github.com/goverbs/verbs/internal/endpoint"
	"github.com/goverbs/verbs/internal/labtest"
	"github.com/goverbs/verbs/internal/scenario"
)

// TestScenarios plays the scenarios that verbs check plays as well, and those of this process.
func TestScenarios(t *testing.T) {
	labtest.RequireBoth(t)
	labtest.Each(t, func(t *testing.T, device string) {
		port := endpoint.Port{Dev: labtest.OpenDevice(t, device)}
		for _, s := range slices.Concat(scenario.List, here) {
			t.Run(s.Name, func(t *testing.T) {
				t.Log("rdma-core:", s.Core)
				missing := s.Missing(port.Dev)
				if _, err := endpoint.Addr(port.Dev.Device()); s.CM && missing == nil {
					missing = err // as on InfiniBand without IPoIB
				}
				switch err := s.Loopback(t.Context(), port); {
				case missing == nil && err != nil:
					t.Error(err)
				case missing != nil && !errors.Is(err, errors.ErrUnsupported):
					t.Errorf("%v, want a refusal: %v", err, missing)
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
