//go:build linux

package erdma

import (
	"fmt"
	"sync/atomic"
)

// counters are what GET_STATS reports, beside the engine's counters.
type counters struct{ requests, sent, received atomic.Uint64 }

// Sizes of the answer, struct erdma_cmdq_query_stats_resp.
const (
	statsHeader = 16
	statsSize   = statsHeader + 11*8
)

// getStats is struct erdma_cmdq_query_req, which is answered in memory.
func (d *Device) getStats(b []byte, _ *response) error {
	const magic = 0x5566 // ERDMA_HW_RESP_MAGIC
	if n := le.Uint32(b[24:]); n < statsSize {
		return fmt.Errorf("statistics in %d bytes of %d: %w", n, statsSize, errInvalid)
	}
	packets := map[string]uint64{}
	for _, c := range d.eng.Counters() {
		packets[c.Name] = c.Value
	}
	out := make([]byte, statsSize)
	le.PutUint16(out, magic)
	out[3] = statsSize - statsHeader
	copy(out[4:8], b[12:16])
	for i, v := range map[int]uint64{
		0: d.counts.requests.Load(), 1: packets["sent_pkts"], 2: d.counts.sent.Load(), 6: packets["rcvd_pkts"], 7: d.counts.received.Load(),
	} {
		le.PutUint64(out[statsHeader+8*i:], v)
	}
	return d.mem.WriteAt(out, le.Uint64(b[16:]))
}
