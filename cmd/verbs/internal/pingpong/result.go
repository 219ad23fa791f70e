package pingpong

import (
	"fmt"
	"os"
	"time"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/cmd/verbs/internal/cli"
)

// result holds the results of a run, in the order in which rdma-core's programs print them.
type result struct {
	Type    string    `json:"type"`
	Local   []address `json:"local"`
	Remote  []address `json:"remote"`
	Size    int       `json:"size"`
	Iters   int       `json:"iters"`
	Bytes   int64     `json:"bytes"`
	Seconds float64   `json:"seconds"`
	Rate    float64   `json:"mbit_per_sec"`
	Round   float64   `json:"usec_per_iter"`
	Checked int       `json:"checked"` // messages that were compared byte by byte
}

type address struct {
	LID uint16 `json:"lid"`
	QPN uint32 `json:"qpn"`
	PSN uint32 `json:"psn"`
	GID string `json:"gid"`
}

// addresses returns addresses for the JSON result. Without --json it prints them at once: they
// may help to find out why a run does not start.
func (c *flags) addresses(title string, ends []verbs.QPAddr) (list []address) {
	for _, e := range ends {
		a := address{e.LID, e.QPNum, e.PSN, e.GID.String()}
		if !c.JSON {
			fmt.Printf("  %s LID 0x%04x, QPN 0x%06x, PSN 0x%06x, GID %s\n", title, a.LID, a.QPN, a.PSN, a.GID)
		}
		list = append(list, a)
	}
	return list
}

func (r *result) measure(took time.Duration) {
	r.Bytes = 2 * int64(r.Size) * int64(r.Iters)
	r.Seconds = took.Seconds()
	r.Rate = float64(r.Bytes) * 8 / 1e6 / r.Seconds
	r.Round = r.Seconds * 1e6 / float64(r.Iters)
}

func (r *result) print(json bool) error {
	if json {
		return cli.WriteJSON(os.Stdout, r)
	}
	fmt.Printf("%d bytes in %.2f seconds = %.2f Mbit/sec\n", r.Bytes, r.Seconds, r.Rate)
	fmt.Printf("%d iters in %.2f seconds = %.2f usec/iter\n", r.Iters, r.Seconds, r.Round)
	return nil
}
