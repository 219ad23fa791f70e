package rdmadev_test

import (
	"fmt"
	"log"
	"net/netip"

	"github.com/goverbs/verbs/rdmadev"
	"github.com/goverbs/verbs/soft"
	"github.com/goverbs/verbs/verbstest"
)

// This example prints the ports of a device and their counters, as a monitor does for all
// [rdmadev.Devices]. Its device is one in user space.
func ExampleFind() {
	made, err := soft.New(soft.Options{
		Name: "example0", Network: verbstest.NewNetwork(verbstest.Options{}),
		Addrs: []netip.Addr{netip.MustParseAddr("198.51.100.1")},
	})
	if err != nil {
		log.Fatal(err)
	}
	defer made.Close()

	device, err := rdmadev.Find("example0")
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(device.Name, device.Driver, device.Protocol)
	for _, port := range device.Ports {
		fmt.Println("port", port.Num, port.State, port.LinkLayer)
		gids, err := port.GIDs()
		if err != nil {
			log.Fatal(err)
		}
		for _, gid := range gids {
			fmt.Println("GID", gid.Index, gid.GID, gid.Type)
		}
		counters, err := device.HardwareCounters(port.Num)
		if err != nil {
			log.Fatal(err)
		}
		for _, c := range counters {
			if c.Name == "sent_pkts" {
				fmt.Println(c.Name, c.Value)
			}
		}
	}
	// Output:
	// example0 soft roce
	// port 1 ACTIVE Ethernet
	// GID 0 ::ffff:198.51.100.1 RoCE v2
	// sent_pkts 0
}
