//go:build darwin || freebsd

package udp

import "golang.org/x/sys/unix"

// dontFragment makes IPv4 packets have the flag DF, which the ICRC covers.
func dontFragment(fd uintptr, ip4 bool) error {
	if !ip4 {
		return nil
	}
	return unix.SetsockoptInt(int(fd), unix.IPPROTO_IP, unix.IP_DONTFRAG, 1)
}
