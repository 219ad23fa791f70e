// Command verbs lists, inspects and tests RDMA devices.
//
//	verbs devices              list devices, their ports and addresses
//	verbs info [DEVICE]        show what devices can do
//	verbs ports [DEVICE]       show the ports of devices of any driver
//	verbs counters [DEVICE]    show counters, or how fast they grow
//	verbs res [KIND]           show resources and their owners
//	verbs conns URL            show connections of a program, and what they wait for
//	verbs stat [DEVICE]        show statistics of ports, QPs and MRs
//	verbs link add|del ...     create, remove, rename and move devices
//	verbs monitor              print changes to devices and ports
//	verbs doctor [DEVICE]      check what RDMA programs need, and show remedies
//	verbs check [PEER]         check and measure a device, for a report
//	verbs abi                  compare the kernel's structures with this program's
//	verbs demo                 write, read reply and compare over RDMA
//	verbs ping -s | -c -a HOST counterpart of rping, works with it
//	verbs perf OP lat|bw HOST  counterpart of perftest: latency and bandwidth
//	verbs cat [-l] HOST        netcat over rsockets
//	verbs completion SHELL     completion for bash, zsh and fish
//	verbs man                  the manual page
//
// HOST may have a port, as in HOST:PORT. verbs --help describes output and exit status.
package main

import "github.com/goverbs/verbs/cmd/verbs/internal/cmdline"

func main() { cmdline.Main() }
