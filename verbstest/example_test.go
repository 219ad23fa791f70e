package verbstest_test

import (
	"context"
	"fmt"
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/cm"
	"github.com/goverbs/verbs/verbstest"
)

// t is the test that an example belongs to. TestExamples sets it.
var t *testing.T

// The peer dies in the middle of a transfer.
func ExampleNetwork_Remove() {
	synctest.Test(t, func(t *testing.T) {
		network := verbstest.NewNetwork(verbstest.Options{})
		verbstest.TraceOnFailure(t, network)
		client, server := verbstest.NewHost(t, network, "10.0.0.1"), verbstest.NewHost(t, network, "10.0.0.2")
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		serve(t, ctx, server, 64)
		conn, err := (&cm.Dialer{Transport: client}).Dial(ctx, addr)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		for i := range 10 {
			if i == 5 {
				network.Remove(netip.MustParseAddr("10.0.0.2"))
			}
			conn.QP.PostSend(verbs.SendWR{Opcode: verbs.OpSend, Flags: verbs.SendSignaled, Inline: []byte("hello")})
			if wc, _ := conn.SendCQ.Next(ctx); wc.Status != verbs.WCSuccess {
				fmt.Println(i, wc.Status)
				break
			}
		}
	})
	// Prints: 5 work completion: transport retries exceeded
}

// The network is down for two seconds, and the connection survives.
func ExampleNetwork_Partition() {
	synctest.Test(t, func(t *testing.T) {
		network := verbstest.NewNetwork(verbstest.Options{})
		client, server := verbstest.NewHost(t, network, "10.0.0.1"), verbstest.NewHost(t, network, "10.0.0.2")
		received := serve(t, t.Context(), server, 64)
		go func() {
			time.Sleep(time.Millisecond)
			network.Partition(netip.MustParseAddr("10.0.0.2"))
			time.Sleep(2 * time.Second)
			network.Heal()
		}()
		begin := time.Now()
		sent, err := transfer(t, t.Context(), client, 64, 1000)
		fmt.Println(sent, <-received, err, time.Since(begin) > 2*time.Second)
		<-received
	})
	// Prints: 1000 1000 <nil> true
}

// The third acknowledgement is lost, which costs a retransmission.
func ExampleNth() {
	synctest.Test(t, func(t *testing.T) {
		isAck := func(p *verbstest.Packet) bool { return p.Kind == verbstest.Ack }
		network := verbstest.NewNetwork(verbstest.Options{Filter: verbstest.Nth(3, isAck, verbstest.Drop)})
		client, server := verbstest.NewHost(t, network, "10.0.0.1"), verbstest.NewHost(t, network, "10.0.0.2")
		received := serve(t, t.Context(), server, 64)
		begin := time.Now()
		sent, err := transfer(t, t.Context(), client, 64, 10)
		fmt.Println(sent, <-received, err, time.Since(begin) > time.Millisecond)
		<-received
	})
	// Prints: 10 10 <nil> true
}

// A filter delays what the connection manager replies, and removes the device that wrote too much.
func ExampleFilter() {
	network := verbstest.NewNetwork(verbstest.Options{})
	written := 0
	network.SetFilter(func(p *verbstest.Packet) verbstest.Action {
		switch {
		case p.CM == "REP":
			return verbstest.Action{Delay: time.Second}
		case p.Kind == verbstest.Write:
			if written += p.PayloadLen; written > 1<<20 {
				network.Remove(p.Src.Addr())
			}
		}
		return verbstest.Pass
	})
}

// Every link is slow and loses packets; one direction is worse.
func ExampleNetwork_SetLink() {
	network := verbstest.NewNetwork(verbstest.Options{
		Seed: 42,
		Link: verbstest.Link{Delay: 50 * time.Microsecond, Bandwidth: 10e9, Loss: 0.001},
	})
	from, to := netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("10.0.0.2")
	network.SetLink(from, to, verbstest.Link{Delay: time.Millisecond, Jitter: time.Millisecond, Loss: 0.1})
}
