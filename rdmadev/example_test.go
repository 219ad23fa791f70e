package rdmadev_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"net/netip"
	"time"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/rdmadev"
	"github.com/goverbs/verbs/soft"
	"github.com/goverbs/verbs/uverbs"
	"github.com/goverbs/verbs/verbstest"
)

// newDevice makes a device in user space for an example. All functions below are the same for
// devices of the kernel.
func newDevice() *soft.Device {
	return must(soft.New(soft.Options{
		Name: "example0", Network: verbstest.NewNetwork(verbstest.Options{}),
		Addrs: []netip.Addr{netip.MustParseAddr("198.51.100.1")},
	}))
}

// must returns v, or ends the program.
func must[T any](v T, err error) T {
	if err != nil {
		log.Fatal(err)
	}
	return v
}

// use makes objects on the device, which functions below list, and returns a function that closes
// them.
func use() (release func()) {
	ctx := must(uverbs.Open("example0"))
	pd, cq := must(ctx.AllocPD()), must(ctx.CreateCQ(uverbs.CQOptions{Depth: 15}))
	mr := must(pd.AllocMR(8192, verbs.AccessLocalWrite, uverbs.MROptions{}))
	qp := must(pd.CreateQP(uverbs.QPOptions{SendCQ: cq, RecvCQ: cq}))
	return func() {
		for _, o := range []io.Closer{qp, mr, cq, pd, ctx} {
			must(0, o.Close())
		}
	}
}

// The devices of this machine, as rdma-link(8) shows them.
func ExampleDevices() {
	defer newDevice().Close()
	devices, err := rdmadev.Devices()
	if err != nil {
		log.Fatal(err)
	}
	for _, d := range devices {
		if d.Driver != "soft" || d.Name != "example0" {
			continue // this machine's own
		}
		for _, port := range d.Ports {
			fmt.Printf("%s/%d %s state %v physical %v\n", d.Name, port.Num, d.Protocol, port.State, port.PhysState)
		}
	}
	// Output: example0/1 roce state ACTIVE physical LINK_UP
}

// A device's ports and their addresses.
func ExampleFind() {
	defer newDevice().Close()
	device, err := rdmadev.Find("example0")
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(device.Name, device.Driver, device.Type)
	for _, port := range device.Ports {
		gids, err := port.GIDs()
		if err != nil {
			log.Fatal(err)
		}
		for _, gid := range gids {
			fmt.Println("port", port.Num, "GID", gid.Index, gid.GID, gid.Type)
		}
	}
	_, err = rdmadev.Find("other0")
	fmt.Println(errors.Is(err, verbs.ErrNoDevice))
	// Output:
	// example0 soft ca
	// port 1 GID 0 ::ffff:198.51.100.1 RoCE v2
	// true
}

// The counters of a driver, as a monitor reads them.
func ExampleDevice_HardwareCounters() {
	defer newDevice().Close()
	counters, err := must(rdmadev.Find("example0")).HardwareCounters(1)
	if err != nil {
		log.Fatal(err)
	}
	for _, c := range counters {
		if c.Name == "sent_pkts" || c.Name == "rcvd_pkts" {
			fmt.Println(c.Name, c.Value)
		}
	}
	// Output:
	// rcvd_pkts 0
	// sent_pkts 0
}

// How much a counter has grown. One that stops at its maximum no longer counts exactly.
func ExampleCounter_Since() {
	before := rdmadev.Counter{Name: "symbol_error", Value: 65000, Max: 65535}
	for _, now := range []uint64{65010, 65535} {
		after := before
		after.Value = now
		n, exact := after.Since(before)
		fmt.Println(n, exact)
	}
	// Output:
	// 10 true
	// 535 false
}

// How many objects programs have on a device (rdma resource).
func ExampleDevice_Counts() {
	defer newDevice().Close()
	defer use()()
	counts, err := must(rdmadev.Find("example0")).Counts()
	if err != nil {
		log.Fatal(err)
	}
	text, err := json.Marshal(counts)
	fmt.Println(string(text), err)
	// Output: {"pd":1,"cq":1,"qp":1,"cm_id":0,"mr":1,"ctx":1,"srq":0} <nil>
}

// The queue pairs of a device (rdma resource show qp).
func ExampleDevice_QPs() {
	defer newDevice().Close()
	defer use()()
	qps, err := must(rdmadev.Find("example0")).QPs()
	if err != nil {
		log.Fatal(err)
	}
	for _, qp := range qps {
		fmt.Println(qp.Type, qp.State, qp.PID != 0)
	}
	// Output: RC RESET true
}

// The completion queues of a device and what uses them.
func ExampleDevice_CQs() {
	defer newDevice().Close()
	defer use()()
	cqs, err := must(rdmadev.Find("example0")).CQs()
	if err != nil {
		log.Fatal(err)
	}
	for _, cq := range cqs {
		fmt.Println(cq.Depth >= 15, cq.Users > 0)
	}
	// Output: true true
}

// The memory that is registered on a device.
func ExampleDevice_MRs() {
	defer newDevice().Close()
	defer use()()
	mrs, err := must(rdmadev.Find("example0")).MRs()
	if err != nil {
		log.Fatal(err)
	}
	for _, mr := range mrs {
		fmt.Println(mr.Length, "bytes")
	}
	// Output: 8192 bytes
}

// A program that is informed when a device comes or goes, or a port changes.
func ExampleSource_Watch() {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	device := newDevice()
	mine := rdmadev.Source{Filter: func(name string) bool { return name == "example0" }}
	for change, err := range mine.Watch(ctx, rdmadev.WatchOptions{Interval: 10 * time.Millisecond}) {
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(change.Kind)
		if change.Kind == rdmadev.DeviceRemoved {
			break
		}
		device.Close()
	}
	// Output:
	// device present
	// device removed
}

// Devices of a host, seen from a container that has the host's sysfs below another name. Where
// there is none, no device is listed.
func ExampleSource() {
	devices, err := rdmadev.Source{Sys: "/host/sys"}.Devices()
	fmt.Println(len(devices), err)
	// Output: 0 <nil>
}
