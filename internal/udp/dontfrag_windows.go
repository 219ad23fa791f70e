package udp

import "syscall"

// ipDontFragment is IP_DONTFRAGMENT of ws2ipdef.h.
const ipDontFragment = 14

// dontFragment makes IPv4 packets have the flag DF, which the ICRC covers.
func dontFragment(fd uintptr, ip4 bool) error {
	if !ip4 {
		return nil
	}
	return syscall.SetsockoptInt(syscall.Handle(fd), syscall.IPPROTO_IP, ipDontFragment, 1)
}
