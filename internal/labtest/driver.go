//go:build linux

package labtest

// Differences of drivers from rxe, by device.

// SentPackets returns the name of a device's counter of the packets that it has sent.
func SentPackets(device string) string {
	if device == MLX5 {
		return "port_xmit_packets"
	}
	return "sent_pkts"
}

// NotReady returns the names of a device's counters of messages without a posted receive. siw does not
// count them: such a message ends its connection.
func NotReady(device string) []string {
	switch device {
	case SIW:
		return nil
	case MLX5:
		return []string{"out_of_buffer", "rnr_nak_retry_err"}
	}
	return []string{"rcvd_rnr_err", "send_rnr_err"}
}
