package main

import (
	"fmt"
	"time"

	"github.com/goverbs/verbs"
)

// pingpongResult is what a run found out, in the order of rdma-core's lines.
type pingpongResult struct {
	Type    string            `json:"type"`
	Local   []pingpongAddress `json:"local"`
	Remote  []pingpongAddress `json:"remote"`
	Size    int               `json:"size"`
	Iters   int               `json:"iters"`
	Bytes   int64             `json:"bytes"`
	Seconds float64           `json:"seconds"`
	Rate    float64           `json:"mbit_per_sec"`
	Round   float64           `json:"usec_per_iter"`
	Checked int               `json:"checked"` // messages of which all bytes were compared
}

type pingpongAddress struct {
	LID uint16 `json:"lid"`
	QPN uint32 `json:"qpn"`
	PSN uint32 `json:"psn"`
	GID string `json:"gid"`
}

// addresses says whom the QPs talk to: at once to people, for whom it may help
// to see why nothing comes after it, and as a value to JSON.
func (c *pingpongFlags) addresses(title string, ends []verbs.QPAddr) (list []pingpongAddress) {
	for _, e := range ends {
		a := pingpongAddress{e.LID, e.QPNum, e.PSN, e.GID.String()}
		if !c.JSON {
			fmt.Printf("  %s LID 0x%04x, QPN 0x%06x, PSN 0x%06x, GID %s\n", title, a.LID, a.QPN, a.PSN, a.GID)
		}
		list = append(list, a)
	}
	return list
}

func (r *pingpongResult) measure(took time.Duration) {
	r.Bytes = 2 * int64(r.Size) * int64(r.Iters)
	r.Seconds = took.Seconds()
	r.Rate = float64(r.Bytes) * 8 / 1e6 / r.Seconds
	r.Round = r.Seconds * 1e6 / float64(r.Iters)
}

func (r *pingpongResult) print(json bool) error {
	if json {
		return printJSON(r)
	}
	fmt.Printf("%d bytes in %.2f seconds = %.2f Mbit/sec\n", r.Bytes, r.Seconds, r.Rate)
	fmt.Printf("%d iters in %.2f seconds = %.2f usec/iter\n", r.Iters, r.Seconds, r.Round)
	return nil
}
