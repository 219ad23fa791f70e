package rdmatest

import (
	"testing"

	"github.com/goverbs/verbs/internal/endpoint"
	"github.com/goverbs/verbs/internal/scenario"
)

// Scenarios plays the scenarios of the command verbs check between two queue pairs of a device, each as
// a subtest, for tests of the device's driver:
//
//	func TestScenarios(t *testing.T) { rdmatest.Each(t, rdmatest.Scenarios) }
//
// A scenario is skipped if the device says that it lacks what it needs.
func Scenarios(t *testing.T, d Device) {
	port := endpoint.Port{Dev: d.Open(t)}
	for _, s := range scenario.List {
		t.Run(s.Name, func(t *testing.T) {
			missing, err := s.Judge(t.Context(), port)
			switch {
			case err != nil:
				t.Error(err)
			case missing != nil:
				t.Skip(missing)
			}
		})
	}
}
