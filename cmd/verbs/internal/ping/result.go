package ping

import (
	"fmt"
	"os"

	"github.com/goverbs/verbs/cmd/verbs/internal/cli"
	"github.com/goverbs/verbs/cmd/verbs/internal/latency"
)

// result holds what one side of a connection measured. Latencies are those of the client:
// from the first message of a round until the data is back.
type result struct {
	Role      string           `json:"role"`
	Device    string           `json:"device"`
	Local     string           `json:"local"`
	Remote    string           `json:"remote"`
	Count     int              `json:"count"` // of complete rounds
	Size      int              `json:"size"`
	Validated bool             `json:"validated"`
	Latency   *latency.Summary `json:"latency_us,omitempty"`

	histogram *latency.Histogram // nil on servers
}

func newResult(role string, p *peer) *result {
	return &result{
		Role: role, Device: p.QP.PD().Context().Device().Name,
		Local: p.LocalAddr().String(), Remote: p.RemoteAddr().String(),
	}
}

func (r *result) print(json bool) error {
	r.Latency = r.histogram.Summary()
	switch {
	case json && r.Role == "server": // of which there may be many
		return cli.WriteJSONLine(os.Stdout, r)
	case json:
		return cli.WriteJSON(os.Stdout, r)
	}
	fmt.Printf("%d rounds of %d bytes with %s on %s", r.Count, r.Size, r.Remote, cli.Printable(r.Device))
	if l := r.Latency; l != nil {
		fmt.Printf("; %v", l)
	}
	_, err := fmt.Println()
	return err
}
