// Package labdev names the devices of the lab, their links and their addresses, for the program
// that makes them and for tests.
package labdev

import (
	"fmt"
	"net/netip"
	"strings"
)

// The software devices.
const RXE, SIW = "rxe0", "siw0"

// Links are the network links of software devices. The kernel chooses those of adapters.
var Links = map[string]string{RXE: "v0", SIW: "d0"}

// Adapters returns the names of adapters by their kinds, the values of --nic: those of a ConnectX are mlx5_0,
// mlx5_1, ..., those of an erdma erdma_0, erdma_1, ...
func Adapters(kinds []string) (names []string) {
	count := map[string]int{}
	for _, kind := range kinds {
		prefix := "mlx5_"
		if strings.HasPrefix(kind, ERDMA) {
			prefix = "erdma_"
		}
		names = append(names, fmt.Sprint(prefix, count[prefix]))
		count[prefix]++
	}
	return names
}

// ERDMA is the value of --nic for an erdma, with which others begin, and InfiniBand that for a ConnectX on
// InfiniBand, which has no address.
const ERDMA, InfiniBand = "erdma", "connectx-ib"

// Addrs returns the addresses of a device on a host, from 1: 10.9.0.1 and fd00:9::1, 10.9.1.1 and
// fd00:9:1::1, and so on, in the order rxe0, siw0, mlx5_0, mlx5_1, erdma_0, erdma_1. No host has another address of
// their networks.
func Addrs(device string, host int) (v4, v6 netip.Prefix) {
	net := 0
	if device == SIW {
		net = 1
	} else if n, _ := fmt.Sscanf(device, "mlx5_%d", &net); n == 1 {
		net += 2
	} else if n, _ := fmt.Sscanf(device, "erdma_%d", &net); n == 1 {
		net += 4
	}
	return netip.MustParsePrefix(fmt.Sprintf("10.9.%d.%d/24", net, host)), netip.MustParsePrefix(fmt.Sprintf("fd00:9:%d::%d/64", net, host))
}
