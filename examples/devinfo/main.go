// Command devinfo lists the RDMA devices, their features, ports and GIDs, with the
// network interface of each GID.
//
//	devinfo [-d DEVICE]
package main

import (
	"flag"
	"fmt"
	"log"
	"net"

	_ "github.com/goverbs/verbs/soft" // VERBS_SOFT makes a device in user space
	"github.com/goverbs/verbs/uverbs"
)

func main() {
	log.SetFlags(0)
	device := flag.String("d", "", "RDMA device (default: all)")
	flag.Parse()
	if err := run(*device); err != nil {
		log.Fatal(err)
	}
}

func run(name string) error {
	if name != "" {
		return show(name)
	}
	devices, err := uverbs.Devices()
	if err != nil {
		return err
	}
	for _, d := range devices {
		if d.NodeErr != nil {
			fmt.Printf("%s: %v\n", d.Name, d.NodeErr)
			continue
		}
		if err := show(d.Name); err != nil {
			return err
		}
	}
	return nil
}

func show(name string) error {
	ctx, err := uverbs.Open(name)
	if err != nil {
		return err
	}
	defer ctx.Close()
	d := ctx.Device()
	fmt.Printf("%s (%s): GUID %v, firmware %q, node type %q\n", d.Name, ctx.Driver(), d.GUID, d.Firmware, d.NodeType)
	attr, err := ctx.QueryDevice()
	if err != nil {
		return err
	}
	fmt.Printf("  at most %d QPs of %d requests, %d CQs of %d, %d MRs, %d SGEs (%d of a READ)\n",
		attr.MaxQP, attr.MaxQPWR, attr.MaxCQ, attr.MaxCQE, attr.MaxMR, attr.MaxSGE, attr.MaxSGERead)
	fmt.Printf("  features:")
	for _, f := range uverbs.Features() {
		if ctx.Probe(f) == nil {
			fmt.Printf(" %q", f)
		}
	}
	fmt.Println()
	for port := 1; port <= d.Ports; port++ {
		p, err := ctx.QueryPort(port)
		if err != nil {
			return err
		}
		fmt.Printf("  port %d: %v, MTU %v of %v\n", port, p.State, p.ActiveMTU, p.MaxMTU)
	}
	gids, err := ctx.GIDTable()
	if err != nil {
		return err
	}
	for _, g := range gids {
		netdev := "no interface"
		if ifi, err := net.InterfaceByIndex(g.Interface); err == nil {
			netdev = ifi.Name
		}
		fmt.Printf("  port %d, GID %d: %v (%v, %s)\n", g.Port, g.Index, g.GID.Addr(), g.Type, netdev)
	}
	return nil
}
