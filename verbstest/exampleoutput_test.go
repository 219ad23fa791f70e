package verbstest_test

import (
	"bytes"
	"context"
	"fmt"
	"log"
	"net/netip"
	"strings"
	"sync"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/cm"
	"github.com/goverbs/verbs/soft"
	"github.com/goverbs/verbs/verbstest"
)

// machine makes a machine for an example that has no test. A test calls NewHost.
func machine(n *verbstest.Network, addr string) (*cm.Transport, func()) {
	d, err := soft.New(soft.Options{Network: n, Host: addr, Addrs: []netip.Addr{netip.MustParseAddr(addr)}})
	if err != nil {
		log.Fatal(err)
	}
	transport := &cm.Transport{Host: d}
	return transport, func() { transport.Close(); d.Close() }
}

// send connects two machines on a network, sends one message and waits for its completion.
func send(n *verbstest.Network, message string) verbs.WCStatus {
	ctx := context.Background()
	server, closeServer := machine(n, "10.0.0.2")
	defer closeServer()
	client, closeClient := machine(n, "10.0.0.1")
	defer closeClient()
	l, err := (&cm.ListenConfig{Transport: server}).Listen(ctx, "10.0.0.2:7471")
	if err != nil {
		log.Fatal(err)
	}
	defer l.Close()
	var served sync.WaitGroup
	served.Go(func() {
		req, err := l.Accept(ctx)
		if err != nil {
			log.Fatal(err)
		}
		e, err := req.Accept(ctx, cm.Options{Setup: func(e *cm.Endpoint) error {
			mr, err := e.AllocMR(4096, verbs.AccessLocalWrite)
			if err != nil {
				return err
			}
			_, err = e.QP.PostRecv(verbs.RecvWR{SGL: []verbs.SGE{mr.SGE(0, 4096)}})
			return err
		}})
		if err != nil {
			log.Fatal(err)
		}
		<-e.Done()
		e.Close()
	})
	e, err := (&cm.Dialer{Transport: client}).Dial(ctx, "10.0.0.2:7471")
	if err != nil {
		log.Fatal(err)
	}
	e.QP.PostSend(verbs.SendWR{Opcode: verbs.OpSend, Flags: verbs.SendSignaled, Inline: []byte(message)})
	wc, err := e.SendCQ.Next(ctx)
	if err != nil {
		log.Fatal(err)
	}
	e.Close()
	served.Wait()
	return wc.Status
}

// A filter sees each packet, and what it is for.
func ExamplePacket() {
	var kinds []string
	send(verbstest.NewNetwork(verbstest.Options{Filter: func(p *verbstest.Packet) verbstest.Action {
		switch p.Kind {
		case verbstest.CM:
			kinds = append(kinds, p.CM)
		case verbstest.Send:
			kinds = append(kinds, fmt.Sprintf("%v of %d bytes", p.Kind, p.PayloadLen))
		}
		return verbstest.Pass
	}}), "hello")
	fmt.Println(strings.Join(kinds[:4], ", "))
	// Output: REQ, REP, RTU, send of 5 bytes
}

// The first copy of a message is damaged on the way: its receiver drops it, and the sender repeats
// it.
func ExampleAction() {
	isSend := func(p *verbstest.Packet) bool { return p.Kind == verbstest.Send }
	network := verbstest.NewNetwork(verbstest.Options{Filter: verbstest.Nth(1, isSend, verbstest.Action{Corrupt: true})})
	fmt.Println(send(network, "hello"))
	fmt.Println(network.Stats().Corrupted, "packet corrupted")
	// Output:
	// work completion: success
	// 1 packet corrupted
}

// Half of all packets arrive twice, and the message arrives once.
func ExampleLink() {
	network := verbstest.NewNetwork(verbstest.Options{Seed: 1, Link: verbstest.Link{Duplicate: 0.5}})
	fmt.Println(send(network, "hello"))
	fmt.Println(network.Stats().Duplicated > 0)
	// Output:
	// work completion: success
	// true
}

// What was on the wire, as text.
func ExampleNetwork_Trace() {
	network := verbstest.NewNetwork(verbstest.Options{})
	send(network, "hello")
	for line := range strings.Lines(network.Trace()) {
		if fields := strings.Fields(line); fields[5] == "RC" && fields[6] == "SEND_ONLY" {
			fmt.Println(fields[2:7]) // the numbers of queue pairs and packets follow
		}
	}
	// Output: [10.0.0.1 > 10.0.0.2 RC SEND_ONLY]
}

// A capture for Wireshark, which shows what happened to each packet.
func ExampleNetwork_WritePcap() {
	network := verbstest.NewNetwork(verbstest.Options{})
	send(network, "hello")
	var file bytes.Buffer
	if err := network.WritePcap(&file); err != nil {
		log.Fatal(err)
	}
	fmt.Printf("%x\n", file.Bytes()[:4]) // the magic number of pcapng
	// Output: 0a0d0d0a
}

// A device that needs a moment for each packet, with room for few.
func ExampleReceiver() {
	network := verbstest.NewNetwork(verbstest.Options{})
	network.SetReceiver(netip.MustParseAddr("10.0.0.2"), verbstest.Receiver{Delay: 1000, Queue: 16})
	fmt.Println(send(network, "hello"))
	// Output: work completion: success
}
