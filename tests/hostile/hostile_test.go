package hostile

import (
	"flag"
	"testing"
	"time"

	"github.com/goverbs/verbs/internal/labtest"
)

var rounds = flag.Int("rounds", 1, "how often each attack is repeated")

var layers = []layer{rsockLayer, msgLayer, connLayer}

// TestAttacks checks that each attack ends as documented, takes no more memory than a
// connection, and does not affect the good client of the same listener.
func TestAttacks(t *testing.T) {
	labtest.EachClean(t, func(t *testing.T, device string) {
		for _, l := range layers {
			withServer(t, l, device, 5*time.Second, func(t *testing.T, s *server, g *goodClient) {
				before := currentUsage(t, device)
				t.Run("at once", func(t *testing.T) {
					for range *rounds {
						for _, a := range l.attacks {
							if !a.isFor(t, device) {
								continue
							}
							t.Run(a.name, func(t *testing.T) {
								t.Parallel()
								l.runAttack(t, s, g, a)
							})
						}
					}
				})
				before.checkGrowth(t, device, usage{heap: 2 << 20, rss: 32 << 20, mrs: 0})
			})
		}
	})
}
