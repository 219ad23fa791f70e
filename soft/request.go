package soft

import (
	"fmt"
	"net/netip"
	"strings"

	"github.com/goverbs/verbs/internal/host"
)

func init() { host.OnRequest(makeRequested) }

// makeRequested makes the device that the environment variable VERBS_SOFT describes. It is never
// closed.
func makeRequested(value string) error {
	var o Options
	if value != "1" {
		for text := range strings.SplitSeq(value, ",") {
			addr, err := netip.ParseAddr(strings.TrimSpace(text))
			if err != nil {
				return fmt.Errorf("neither 1 nor a list of addresses: %w", err)
			}
			o.Addrs = append(o.Addrs, addr)
		}
	}
	_, err := New(o)
	return err
}
