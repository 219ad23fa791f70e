//go:build linux

package labtest

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"os"
	"strings"
)

// TCPState is the state of a TCP socket (include/net/tcp_states.h).
type TCPState int

const (
	TCPEstablished TCPState = 1
	TCPListen      TCPState = 10
)

// TCPSocket is a TCP socket of IPv4.
type TCPSocket struct {
	Local  netip.AddrPort
	State  TCPState
	Unread int // bytes that TCP has received and nobody has read; of a listener, connections to accept
}

// TCPSockets returns the TCP sockets of this network namespace, with siw's. siw reads data as it arrives,
// so bytes that stay unread show that it has missed data.
func TCPSockets() ([]TCPSocket, error) {
	table, err := os.ReadFile("/proc/net/tcp")
	if err != nil {
		return nil, err
	}
	return parseTCP(string(table))
}

func parseTCP(table string) (list []TCPSocket, err error) {
	_, table, _ = strings.Cut(table, "\n") // the names of the columns
	for line := range strings.Lines(table) {
		var s TCPSocket
		var slot, remote string
		var addr uint32
		var port uint16
		var out int
		if _, err := fmt.Sscanf(line, "%s %x:%x %s %x %x:%x", &slot, &addr, &port, &remote, &s.State, &out, &s.Unread); err != nil {
			return nil, fmt.Errorf("/proc/net/tcp: %q: %w", line, err)
		}
		var ip [4]byte
		binary.NativeEndian.PutUint32(ip[:], addr) // the kernel prints the word as it is in memory
		s.Local = netip.AddrPortFrom(netip.AddrFrom4(ip), port)
		list = append(list, s)
	}
	return list, nil
}
