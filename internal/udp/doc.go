// Package udp is a network of RoCEv2 packets over UDP sockets: one socket for each address of a
// device, and one for each multicast group that it has joined.
//
// # IPv4 identification
//
// The ICRC of a packet covers the IPv4 identification and the flags, which the kernel chooses.
// The caller of Send computes the ICRC with an identification of 0 and the flag DF (don't
// fragment), and the port sends packets with these. On Linux they are what an unconnected
// socket with IP_PMTUDISC_PROBE sends. Only UDP segmentation offload (GSO) differs: the kernel, or
// the interface, numbers the segments of one call from 0. The port knows the numbers, and as a
// CRC is linear, it corrects the ICRC of the second and later segments by a value that only
// depends on the packet's length. An interface that segments by itself and does not number them
// needs [Network.NoOffload]. IPv6 has no such field.
//
// Other systems may choose another identification. Devices of this module accept every
// identification, the kernel's rxe driver does not: with it, use IPv6 there.
//
// # IPv6
//
// The kernel's rxe driver sends IPv6 packets without UDP checksum. On Linux they are received,
// other systems drop them.
package udp
