package uverbs

// Rate is a path's limit as [AddressVector] has it (enum ib_rate). The zero
// Rate is the port's own.
type Rate uint8

// rateMbps is what each rate carries in Mb/s, 0 for none of them.
var rateMbps = [...]int{
	2: 2500, 3: 10000, 4: 30000, 5: 5000, 6: 20000, 7: 40000, 8: 60000, 9: 80000, 10: 120000,
	11: 14062, 12: 56250, 13: 112500, 14: 168750, 15: 25781, 16: 103125, 17: 206250, 18: 309375,
	19: 28125, 20: 53125, 21: 425000, 22: 637500, 23: 850000, 24: 1275000,
}

// Mbps is the rate in Mb/s (ibv_rate_to_mbps(3)); 0 if it sets no limit.
func (r Rate) Mbps() int {
	if int(r) < len(rateMbps) {
		return rateMbps[r]
	}
	return 0
}

// RateOf is the fastest rate that is not above mbps; the slowest if all are.
func RateOf(mbps int) Rate {
	best := Rate(2)
	for r, m := range rateMbps {
		if m > rateMbps[best] && m <= mbps {
			best = Rate(r)
		}
	}
	return best
}
