package soft_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"time"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/cm"
	"github.com/goverbs/verbs/rdmadev"
	"github.com/goverbs/verbs/rsock"
	"github.com/goverbs/verbs/soft"
	"github.com/goverbs/verbs/uverbs"
	"github.com/goverbs/verbs/verbstest"
)

var ctx = context.Background()

// ok returns v, or ends the program.
func ok[T any](v T, err error) T {
	if err != nil {
		log.Fatal(err)
	}
	return v
}

// loopback is an address of this machine. Port 4791 may be that of the kernel's rxe.
var loopback = netip.MustParseAddr("127.0.0.77")

// A program with a device of its own, on UDP: no RDMA in the kernel and no privileges are needed.
func Example() {
	dev, err := soft.New(soft.Options{Addrs: []netip.Addr{loopback}, Port: 14791})
	if err != nil {
		log.Fatal(err)
	}
	defer dev.Close()
	transport := &cm.Transport{Host: dev}
	defer transport.Close()

	l, err := (&rsock.ListenConfig{Transport: transport}).Listen(ctx, "rdma", "127.0.0.77:0")
	if err != nil {
		log.Fatal(err)
	}
	defer l.Close()
	go func() {
		if c, err := l.Accept(); err == nil {
			io.Copy(c, c)
			c.Close()
		}
	}()
	c, err := (&rsock.Dialer{Transport: transport}).Dial("rdma", l.Addr().String())
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close()
	fmt.Fprint(c, "hello")
	c.(*rsock.Conn).CloseWrite()
	fmt.Printf("%s\n", ok(io.ReadAll(c)))
	// Output: hello
}

// machine makes a device with an address of an example's network.
func machine(network soft.Network, name, addr string) *soft.Device {
	return ok(soft.New(soft.Options{Name: name, Host: name, Network: network, Addrs: []netip.Addr{netip.MustParseAddr(addr)}}))
}

// Two machines in one program, each with its device and its transport, on a network in memory.
func ExampleNew() {
	network := verbstest.NewNetwork(verbstest.Options{})
	server, client := machine(network, "server", "10.0.0.1"), machine(network, "client", "10.0.0.2")
	defer server.Close()
	defer client.Close()
	serving, dialing := &cm.Transport{Host: server}, &cm.Transport{Host: client}
	defer serving.Close()
	defer dialing.Close()

	l := ok((&rsock.ListenConfig{Transport: serving}).Listen(ctx, "rdma", ":80"))
	web := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		host, _, _ := net.SplitHostPort(r.RemoteAddr)
		fmt.Fprint(w, "hello ", host)
	})}
	go web.Serve(l)
	defer web.Close()
	browser := http.Client{Transport: &http.Transport{DialContext: (&rsock.Dialer{Transport: dialing}).DialContext}}
	defer browser.CloseIdleConnections()
	answer := ok(browser.Get("http://10.0.0.1"))
	defer answer.Body.Close()
	fmt.Printf("%s\n", ok(io.ReadAll(answer.Body)))
	// Output: hello 10.0.0.2
}

// Package uverbs opens a device in user space as it opens one of the kernel.
func ExampleDevice_Name() {
	dev := machine(verbstest.NewNetwork(verbstest.Options{}), "example0", "10.0.0.1")
	defer dev.Close()
	opened := ok(uverbs.Open(dev.Name()))
	defer opened.Close()
	port := ok(opened.QueryPort(1))
	fmt.Println(opened.Device().Name, port.State, port.LinkLayer, port.ActiveMTU.Bytes())
	// Output: example0 ACTIVE Ethernet 4096
}

// A test counts what a program has on the device, before and after.
func ExampleDevice_Resources() {
	dev := machine(verbstest.NewNetwork(verbstest.Options{}), "example0", "10.0.0.1")
	defer dev.Close()
	opened := ok(uverbs.Open("example0"))
	pd := ok(opened.AllocPD())
	fmt.Println(dev.Resources()["ctx"], dev.Resources()["pd"])
	pd.Close()
	opened.Close()
	fmt.Println(dev.Resources()["ctx"], dev.Resources()["pd"])
	// Output:
	// 1 1
	// 0 0
}

// The counters of a device have rxe's names.
func ExampleDevice_Stats() {
	network := verbstest.NewNetwork(verbstest.Options{})
	a, b := machine(network, "a", "10.0.0.1"), machine(network, "b", "10.0.0.2")
	defer b.Close()
	transport, listening := &cm.Transport{Host: a}, &cm.Transport{Host: b}
	_, err := (&cm.Dialer{Transport: transport}).Dial(ctx, "10.0.0.2:1")
	fmt.Println("refused:", errors.As(err, new(*cm.RejectedError)))
	transport.Close()
	listening.Close()
	a.Close()
	fmt.Println(a.Stats()["sent_pkts"] > 0, a.Stats()["rcvd_pkts"] > 0)
	// Output:
	// refused: true
	// true true
}

// The addresses on which programs listen and dial.
func ExampleDevice_Addrs() {
	dev := ok(soft.New(soft.Options{
		Network: verbstest.NewNetwork(verbstest.Options{}),
		Addrs:   []netip.Addr{netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("fd00::1")},
	}))
	defer dev.Close()
	fmt.Println(dev.Addrs()[:2], dev.Addrs()[2].IsLinkLocalUnicast()) // as an interface has one
	// Output: [10.0.0.1 fd00::1] true
}

// Close is the removal of a device: programs that use it are told.
func ExampleDevice_Close() {
	dev := machine(verbstest.NewNetwork(verbstest.Options{}), "example0", "10.0.0.1")
	opened := ok(uverbs.Open("example0"))
	defer opened.Close()
	dev.Close()
	waiting, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	for event, err := range opened.AsyncEvents(waiting) {
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(event.Type)
		if event.Type == verbs.EventDeviceFatal {
			break
		}
	}
	_, err := opened.AllocPD()
	fmt.Println(errors.Is(err, verbs.ErrDeviceRemoved))
	// Output:
	// port error
	// device fatal error
	// true
}

// Monitors see devices in user space of their own process, with their ports.
func ExampleOptions() {
	dev := ok(soft.New(soft.Options{
		Name: "example0", MTU: 3, // 1024 bytes
		Network: verbstest.NewNetwork(verbstest.Options{}),
		Addrs:   []netip.Addr{netip.MustParseAddr("10.0.0.1")},
	}))
	defer dev.Close()
	seen := ok(rdmadev.Find("example0"))
	fmt.Println(seen.Driver, seen.Protocol, seen.Ports[0].State)
	// Output: soft roce ACTIVE
}

// wire carries packets and counts them; a program may bring any network.
type wire struct {
	soft.Network
	ports int
}

func (w *wire) Open(addr netip.AddrPort) (soft.Port, error) {
	w.ports++
	return w.Network.Open(addr)
}

// A network that a program wraps: one port for each address.
func ExampleNetwork() {
	w := &wire{Network: verbstest.NewNetwork(verbstest.Options{})}
	dev := ok(soft.New(soft.Options{Network: w, Addrs: []netip.Addr{netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("10.0.0.2")}}))
	defer dev.Close()
	fmt.Println(w.ports)
	// Output: 2
}

// Devices have numbers of their own, and are found by name, GUID or address.
func ExampleDevice() {
	dev := machine(verbstest.NewNetwork(verbstest.Options{}), "example0", "10.0.0.1")
	defer dev.Close()
	for _, name := range []string{"example0", "10.0.0.1"} {
		fmt.Println(ok(uverbs.Find(name)).Name)
	}
	fmt.Println(slices.ContainsFunc(ok(uverbs.Devices()), func(d uverbs.Device) bool { return d.Name == "example0" }))
	// Output:
	// example0
	// example0
	// true
}
