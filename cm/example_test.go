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

// The examples use these variables. TestExamples sets them.
var (
	ctx = context.Background()
	dev uverbs.Device
)

// This example is a server that prints what its clients send, until they disconnect.
func ExampleListen() {
	l, err := cm.Listen(ctx, ":7471")
	if err != nil {
		log.Fatal(err)
	}
	defer l.Close()
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
			if err = conn.Reason(err); errors.Is(err, verbs.ErrDisconnected) {
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
	defer serving.Wait()
	for {
		req, err := l.Accept(ctx)
		if err != nil { // for example ctx.Err()
			log.Print(err)
			return
		}
		serving.Go(func() {
			if err := serve(req); err != nil {
				log.Print(err)
			}
		})
	}
}

// This example is a client of the server in the example of Listen.
func ExampleDial() {
	conn, err := cm.Dial(ctx, "10.9.0.1:7471")
	if err != nil {
		log.Fatal(err)
	}
	defer conn.Close()
	send := verbs.SendWR{Opcode: verbs.OpSend, Flags: verbs.SendSignaled, Inline: []byte("hello")}
	if _, err := conn.QP.PostSend(send); err != nil {
		log.Fatal(err)
	}
	// Closing would flush the message, so wait for its completion.
	if _, err := conn.SendCQ.Next(ctx); err != nil {
		log.Fatal(err)
	}
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
}

func ExampleDeviceAddrs() {
	addrs, err := cm.DeviceAddrs(dev)
	if err != nil {
		log.Fatal(err)
	}
	for _, a := range addrs {
		fmt.Println(netip.AddrPortFrom(a, 7471))
	}
}
