package verbs_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log"
	"net"
	"net/netip"
	"syscall"

	"github.com/goverbs/verbs"
)

// On RoCE v2 the GID of an interface is its IP address.
func ExampleParseGID() {
	for _, s := range []string{"10.9.0.1", "fd00:9::1", "fe80::15:b3ff:fe09:1"} {
		gid, err := verbs.ParseGID(s)
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(gid, gid.Addr())
	}
	// Output:
	// ::ffff:10.9.0.1 10.9.0.1
	// fd00:9::1 fd00:9::1
	// fe80::15:b3ff:fe09:1 fe80::15:b3ff:fe09:1
}

// GIDs and GUIDs are text in JSON. The colons of sysfs are optional.
func ExampleGUID() {
	var node struct{ GUID verbs.GUID }
	if err := json.Unmarshal([]byte(`{"GUID": "0015:b3ff:fe09:0001"}`), &node); err != nil {
		log.Fatal(err)
	}
	fmt.Println(node.GUID)
	// Output: 0015b3fffe090001
}

// Without a connection manager two programs exchange the addresses of their queue pairs, here over
// any connection. C's ibv_rc_pingpong speaks the same text.
func ExampleQPAddr_Offer() {
	client := verbs.QPAddr{QPNum: 17, PSN: 0x636ab2, GID: gid("10.9.0.1")}
	server := verbs.QPAddr{QPNum: 18, PSN: 0x1, GID: gid("10.9.0.2")}
	dialed, accepted := net.Pipe()
	go func() {
		_, err := server.Answer(accepted, func(peer verbs.QPAddr) error { return nil }) // connect to the peer here
		if err != nil {
			log.Fatal(err)
		}
	}()
	peer, err := client.Offer(dialed)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(peer.QPNum, peer.GID)
	fmt.Println(client)
	// Output:
	// 18 ::ffff:10.9.0.2
	// 0000:000011:636ab2:00000000000000000000ffff0a090001
}

func gid(addr string) verbs.GID { return netip.MustParseAddr(addr).As16() }

// The path that replies to an address takes.
func ExampleQPAddr_PathFrom() {
	local := verbs.QPAddr{QPNum: 17, GID: gid("10.9.0.1"), Port: 1, GIDIndex: 3}
	path := verbs.QPAddr{QPNum: 18, GID: gid("10.9.0.2")}.PathFrom(local)
	fmt.Println(path.Global, path.DGID, path.SGIDIndex, path.HopLimit)
	// Output: true ::ffff:10.9.0.2 3 64
}

// A send queue for 256 requests without inline data; the rest are defaults.
func ExampleQPCap_WithDefaults() {
	fmt.Printf("%+v\n", verbs.QPCap{MaxSendWR: 256, MaxInline: -1}.WithDefaults())
	// Output: {MaxSendWR:256 MaxRecvWR:64 MaxSendSGE:2 MaxRecvSGE:2 MaxInline:0}
}

// Rates are those of the specification: 30 Gb/s is the fastest one that 32 Gb/s allow.
func ExampleRateOf() {
	rate := verbs.RateOf(32_000)
	fmt.Println(rate.Mbps())
	// Output: 30000
}

// The data rate of a port of four lanes.
func ExamplePortAttr_Speed() {
	port := verbs.PortAttr{ActiveSpeed: 32, ActiveWidth: 2, ActiveMTU: 5}
	fmt.Println(port.Speed(), "Mb/s,", port.ActiveMTU.Bytes(), "bytes")
	// Output: 100000 Mb/s, 4096 bytes
}

// Failed completions are errors, which match their status.
func ExampleWC_Err() {
	wc := verbs.WC{ID: 7, Status: verbs.WCRetryExcErr, QPNum: 17, VendorErr: 0x81}
	err := wc.Err()
	fmt.Println(err)
	fmt.Println(errors.Is(err, verbs.WCRetryExcErr), errors.Is(err, verbs.WCFlushErr))
	// Output:
	// work request 0x7 on QP 17: transport retries exceeded (vendor error 0x81)
	// true false
}

// Errors match what the kernel returned, and what package io/fs calls it.
func ExampleError() {
	var err error = &verbs.Error{Op: "open", Object: "/dev/infiniband/uverbs0", Device: "rxe0", Err: syscall.EACCES, Hint: "add the user to the group rdma"}
	fmt.Println(err)
	var failed *verbs.Error
	fmt.Println(errors.As(err, &failed), errors.Is(err, fs.ErrPermission))
	// Output:
	// open /dev/infiniband/uverbs0 on rxe0: permission denied (add the user to the group rdma)
	// true true
}

// A program that can also use TCP asks for one error, which others match.
func Example() {
	for _, err := range []error{verbs.ErrNoDevice, verbs.ErrNoDriver, verbs.ErrNoRoute, syscall.EACCES} {
		fmt.Println(errors.Is(err, verbs.ErrNoRDMA), err)
	}
	// Output:
	// true no such RDMA device
	// true no driver package for the device
	// true no RDMA device on route
	// false permission denied
}
