//go:build linux

package cm_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log"
	"net/netip"
	"sync"
	"time"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/cm"
	"github.com/goverbs/verbs/uverbs"
)

// The examples use a device in user space in this process, or the lab's rxe0: its address is
// 10.9.0.1.
var ctx = context.Background()

// A server that prints what its clients send, until they disconnect, and a client.
func Example() {
	l, err := cm.Listen(ctx, "10.9.0.1:0") // any free port
	if err != nil {
		log.Fatal(err)
	}
	serve := func(req *cm.Request) error {
		var inbox *uverbs.MR
		post := func(e *cm.Endpoint) error {
			_, err := e.QP.PostRecv(verbs.RecvWR{SGL: []verbs.SGE{inbox.SGE(0, inbox.Len())}})
			return err
		}
		conn, err := req.Accept(ctx, cm.Options{
			Setup: func(e *cm.Endpoint) (err error) { // before the client can send
				if inbox, err = e.AllocMR(4096, verbs.AccessLocalWrite); err != nil {
					return err
				}
				return post(e)
			},
		})
		if err != nil {
			return err
		}
		defer conn.Close()
		for {
			wc, err := conn.RecvCQ.Next(ctx)
			if err = conn.Reason(ctx, err); errors.Is(err, verbs.ErrDisconnected) {
				return nil
			}
			if err != nil {
				return err
			}
			fmt.Printf("%s\n", inbox.Bytes()[:wc.ByteLen])
			if err := post(conn); err != nil {
				return err
			}
		}
	}
	var serving sync.WaitGroup
	serving.Go(func() {
		for {
			req, err := l.Accept(ctx)
			if err != nil { // when l is closed
				return
			}
			serving.Go(func() {
				if err := serve(req); err != nil {
					log.Print(err)
				}
			})
		}
	})

	conn, err := cm.Dial(ctx, l.Addr().String())
	if err != nil {
		log.Fatal(err)
	}
	send := verbs.SendWR{Opcode: verbs.OpSend, Flags: verbs.SendSignaled, Inline: []byte("hello")}
	if _, err := conn.QP.PostSend(send); err != nil {
		log.Fatal(err)
	}
	// Closing would flush the message, so wait for its completion.
	if _, err := conn.SendCQ.Next(ctx); err != nil {
		log.Fatal(err)
	}
	conn.Close()
	l.Close()
	serving.Wait()
	// Output: hello
}

// This example exchanges private data: the client sends its version, and the server
// accepts or rejects it.
func ExampleDialer_Dial() {
	l, err := cm.Listen(ctx, "10.9.0.1:0") // any free port
	if err != nil {
		log.Fatal(err)
	}
	defer l.Close()
	go func() {
		for {
			req, err := l.Accept(ctx)
			if err != nil {
				return
			}
			if !bytes.HasPrefix(req.PrivateData(), []byte("v2")) {
				req.Reject([]byte("speak v2"))
				continue
			}
			conn, err := req.Accept(ctx, cm.Options{PrivateData: []byte("welcome")})
			if err != nil {
				log.Print(err)
				continue
			}
			defer conn.Close()
		}
	}()

	for _, version := range []string{"v1", "v2"} {
		d := cm.Dialer{Options: cm.Options{PrivateData: []byte(version)}}
		conn, err := d.Dial(ctx, l.Addr().String())
		if rejected, ok := errors.AsType[*cm.RejectedError](err); ok {
			// RoCE pads private data with zeros.
			fmt.Printf("%s: rejected: %s\n", version, bytes.TrimRight(rejected.PrivateData, "\x00"))
			continue
		}
		if err != nil {
			log.Fatal(err)
		}
		fmt.Printf("%s: accepted: %s\n", version, bytes.TrimRight(conn.PrivateData, "\x00"))
		conn.Close()
	}
	// Output:
	// v1: rejected: speak v2
	// v2: accepted: welcome
}

// This example makes and ends many connections in one goroutine.
func ExampleChannel() {
	loop, err := cm.DefaultTransport().NewChannel()
	if err != nil {
		log.Fatal(err)
	}
	defer loop.Close()
	l, err := loop.NewID(cm.PortSpaceTCP)
	if err != nil {
		log.Fatal(err)
	}
	defer l.Close()
	addr := netip.MustParseAddrPort("10.9.0.1:7473")
	if err := errors.Join(l.Bind(addr), l.Listen(0)); err != nil {
		log.Fatal(err)
	}
	for i := range 3 {
		id, err := loop.NewID(cm.PortSpaceTCP)
		if err != nil {
			log.Fatal(err)
		}
		id.Tag = i
		if err := id.ResolveAddr(netip.AddrPort{}, addr, time.Second); err != nil {
			log.Fatal(err)
		}
	}
	for gone := 0; gone < 3; {
		ev, err := loop.Next(ctx)
		if err != nil {
			log.Fatal(err)
		}
		switch ev.Type {
		case cm.AddrResolved:
			err = ev.ID.ResolveRoute(time.Second)
		case cm.RouteResolved:
			opt := cm.Options{PrivateData: fmt.Append(nil, ev.ID.Tag)}
			_, err = loop.Connect(ev, opt)
		case cm.ConnectRequest:
			var e *cm.Endpoint
			if e, err = loop.Accept(ev, cm.Options{}); err == nil {
				e.ID().Tag = "client " + string(bytes.TrimRight(e.PrivateData, "\x00"))
			}
		case cm.Established: // for both ends
			if _, dialed := ev.ID.Tag.(int); dialed {
				err = ev.Endpoint.Close()
			}
		case cm.Disconnected:
			gone++
			fmt.Println(ev.ID.Tag, "has gone")
			err = ev.Endpoint.Close()
		default:
			err = ev.Err()
		}
		if err != nil {
			log.Fatal(err)
		}
	}
	// Unordered output:
	// client 0 has gone
	// client 1 has gone
	// client 2 has gone
}

// The addresses of this machine that lead to a device.
func ExampleDeviceAddrs() {
	dev, err := uverbs.Find("10.9.0.1")
	if err != nil {
		log.Fatal(err)
	}
	addrs, err := cm.DeviceAddrs(dev)
	if err != nil {
		log.Fatal(err)
	}
	for _, a := range addrs {
		if !a.IsLinkLocalUnicast() {
			fmt.Println(netip.AddrPortFrom(a, 7471))
		}
	}
	// Output:
	// 10.9.0.1:7471
	// [fd00:9::1]:7471
}

// connected returns the two ends of a connection.
func connected(dial, accept cm.Options) (client, server *cm.Endpoint) {
	l, err := cm.Listen(ctx, "10.9.0.1:0")
	if err != nil {
		log.Fatal(err)
	}
	defer l.Close()
	accepted := make(chan *cm.Endpoint)
	go func() {
		req, err := l.Accept(ctx)
		if err != nil {
			log.Fatal(err)
		}
		e, err := req.Accept(ctx, accept)
		if err != nil {
			log.Fatal(err)
		}
		accepted <- e
	}()
	d := cm.Dialer{Options: dial}
	client, err = d.Dial(ctx, l.Addr().String())
	if err != nil {
		log.Fatal(err)
	}
	return client, <-accepted
}

// Which device, port and address a connection would use.
func ExampleLookup() {
	path, err := cm.Lookup(ctx, "10.9.0.1")
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(path.Device.Name, path.Port, path.GID)
	_, err = cm.Lookup(ctx, "127.0.0.1")
	fmt.Println(errors.Is(err, verbs.ErrNoRoute), errors.Is(err, verbs.ErrNoRDMA))
	// Output:
	// rxe0 1 ::ffff:10.9.0.1
	// true true
}

// The server announces memory when it accepts. The client reads it.
func ExampleEndpoint_Announce() {
	client, server := connected(cm.Options{}, cm.Options{Setup: func(e *cm.Endpoint) error {
		mr, err := e.AllocMR(64, verbs.AccessRemoteRead)
		if err != nil {
			return err
		}
		copy(mr.Bytes(), "read me")
		return e.Announce(fmt.Appendf(nil, "%x %x", mr.Addr(), mr.RKey()))
	}})
	defer client.Close()
	defer server.Close()
	var addr uint64
	var key uint32
	if _, err := fmt.Sscanf(string(bytes.TrimRight(client.PrivateData, "\x00")), "%x %x", &addr, &key); err != nil {
		log.Fatal(err)
	}
	mine, err := client.AllocMR(64, verbs.AccessLocalWrite)
	if err != nil {
		log.Fatal(err)
	}
	read := verbs.SendWR{
		Opcode: verbs.OpRDMARead, Flags: verbs.SendSignaled, SGL: []verbs.SGE{mine.SGE(0, 7)},
		RemoteAddr: addr, RKey: key,
	}
	if _, err := client.QP.PostSend(read); err != nil {
		log.Fatal(err)
	}
	if _, err := client.SendCQ.Next(ctx); err != nil {
		log.Fatal(err)
	}
	fmt.Printf("%s\n", mine.Bytes()[:7])
	// Output: read me
}

// Why a connection ended: here the peer closed it.
func ExampleEndpoint_Err() {
	client, server := connected(cm.Options{}, cm.Options{})
	defer client.Close()
	server.Close()
	<-client.Done()
	fmt.Println(client.Err(), errors.Is(client.Err(), verbs.ErrDisconnected))
	// Output: peer disconnected true
}

// Connections of one program that can use each other's memory regions, one with small queues.
func ExampleOptions() {
	a, b := connected(cm.Options{SharePD: true}, cm.Options{SharePD: true, Cap: verbs.QPCap{MaxSendWR: 8, MaxRecvWR: 16, MaxInline: -1}})
	defer a.Close()
	defer b.Close()
	fmt.Println("one protection domain:", a.PD == b.PD)
	fmt.Println(b.QP.Cap().MaxSendWR >= 8, b.QP.Cap().MaxRecvWR >= 16)
	// Output:
	// one protection domain: true
	// true true
}

// Two connections take their receives from one queue: a server with many connections needs memory
// for the messages in flight only, and its QPs have no receive queues.
func ExampleOptions_sharedReceives() {
	path, err := cm.Lookup(ctx, "10.9.0.1")
	if err != nil {
		log.Fatal(err)
	}
	dev, err := path.Device.Open()
	if err != nil {
		log.Fatal(err)
	}
	defer dev.Close()
	pd, err := dev.AllocPD()
	if err != nil {
		log.Fatal(err)
	}
	defer pd.Close()
	events, err := dev.CreateCompChannel()
	if err != nil {
		log.Fatal(err)
	}
	defer events.Close()
	cq, err := dev.CreateCQ(uverbs.CQOptions{Depth: 64, Channel: events})
	if err != nil {
		log.Fatal(err)
	}
	defer cq.Close()
	srq, err := pd.CreateSRQ(uverbs.SRQOptions{MaxWR: 16, MaxSGE: 1})
	if err != nil {
		log.Fatal(err)
	}
	defer srq.Close()
	inbox, err := pd.AllocMR(16*64, verbs.AccessLocalWrite, uverbs.MROptions{})
	if err != nil {
		log.Fatal(err)
	}
	defer inbox.Close()
	for i := range 16 {
		if _, err := srq.PostRecv(verbs.RecvWR{ID: uint64(i), SGL: []verbs.SGE{inbox.SGE(64*i, 64)}}); err != nil {
			log.Fatal(err)
		}
	}
	shared := cm.Options{PD: pd, SRQ: srq, SendCQ: cq, RecvCQ: cq, Cap: verbs.QPCap{MaxSendWR: 4}}
	for i := range 2 {
		client, server := connected(cm.Options{}, shared)
		defer client.Close()
		defer server.Close()
		hello := verbs.SendWR{Opcode: verbs.OpSend, Inline: fmt.Appendf(nil, "hello from %d", i)}
		if _, err := client.QP.PostSend(hello); err != nil {
			log.Fatal(err)
		}
		wc, err := cq.Next(ctx)
		if err != nil {
			log.Fatal(err)
		}
		fmt.Printf("%s, on the server's connection: %t\n", inbox.Bytes()[64*wc.ID:][:wc.ByteLen], wc.QPNum == server.QP.Num())
	}
	// Output:
	// hello from 0, on the server's connection: true
	// hello from 1, on the server's connection: true
}

// A transport of its own has its own devices, and can be closed.
func ExampleTransport() {
	transport := &cm.Transport{Host: cm.DefaultTransport().Host, IdleTimeout: -1}
	l, err := (&cm.ListenConfig{Transport: transport}).Listen(ctx, "10.9.0.1:0")
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println("in use:", errors.Is(transport.Close(), verbs.ErrInUse))
	l.Close()
	fmt.Println(transport.Close())
	// Output:
	// in use: true
	// <nil>
}

// A server that ends: it accepts no more and waits for its connections.
func ExampleListener_Shutdown() {
	l, err := cm.Listen(ctx, "10.9.0.1:0")
	if err != nil {
		log.Fatal(err)
	}
	accepted := make(chan bool)
	go func() {
		req, err := l.Accept(ctx)
		if err != nil {
			log.Fatal(err)
		}
		e, err := req.Accept(ctx, cm.Options{})
		if err != nil {
			log.Fatal(err)
		}
		accepted <- true
		<-e.Done()
		e.Close()
	}()
	client, err := cm.Dial(ctx, l.Addr().String())
	if err != nil {
		log.Fatal(err)
	}
	<-accepted
	time.AfterFunc(10*time.Millisecond, func() { client.Close() })
	fmt.Println(l.Shutdown(ctx))
	fmt.Println(l.Stats().Accepted, "accepted")
	// Output:
	// <nil>
	// 1 accepted
}

// Datagrams: one endpoint hears from any number of senders, and answers them.
func ExampleDatagrams() {
	const size = 1000 // of the largest message
	l, err := (&cm.ListenConfig{PortSpace: cm.PortSpaceUDP}).Listen(ctx, "10.9.0.1:0")
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
		var d *cm.Datagrams
		e, err := req.Accept(ctx, cm.Options{Setup: func(e *cm.Endpoint) (err error) {
			d, err = cm.NewDatagrams(e, size)
			return err
		}})
		if err != nil {
			log.Fatal(err)
		}
		defer e.Close()
		b := make([]byte, size)
		m, err := d.Recv(ctx, b)
		if err != nil {
			log.Fatal(err)
		}
		if err := d.Reply(ctx, m.From, append([]byte("heard: "), b[:m.Len]...)); err != nil {
			log.Fatal(err)
		}
	})

	var d *cm.Datagrams
	e, err := (&cm.Dialer{PortSpace: cm.PortSpaceUDP, Options: cm.Options{Setup: func(e *cm.Endpoint) (err error) {
		d, err = cm.NewDatagrams(e, size)
		return err
	}}}).Dial(ctx, l.Addr().String())
	if err != nil {
		log.Fatal(err)
	}
	defer e.Close()
	if err := d.Send(ctx, e.Peer, []byte("hello")); err != nil {
		log.Fatal(err)
	}
	b := make([]byte, size)
	m, err := d.Recv(ctx, b)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Printf("%s\n", b[:m.Len])
	served.Wait()
	// Output: heard: hello
}
