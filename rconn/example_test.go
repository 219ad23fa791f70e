//go:build linux

package rconn_test

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"log"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/rconn"
)

var ctx = context.Background()

// listen is any free port of a device in user space in this process, or of the lab's rxe0.
const listen = "10.9.0.1:0"

// A responder advertises memory. The initiator writes to it, reads it back, and sends a
// message when it is done.
func Example() {
	l, err := rconn.Listen(ctx, listen)
	if err != nil {
		log.Fatal(err)
	}
	defer l.Close()
	served := make(chan error, 1)
	go func() { served <- respond(l) }()

	c, err := (&rconn.Dialer{Options: rconn.Options{Adverts: 1}}).Dial(ctx, l.Addr().String()) // expects one advertisement
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close()
	theirs, err := c.AwaitAdvert(ctx)
	if err != nil {
		log.Fatal(err)
	}
	mine, err := c.Alloc(4096, rconn.LocalWrite)
	if err != nil {
		log.Fatal(err)
	}
	n := copy(mine.Bytes(), "written by the initiator")
	if err := c.Post(rconn.Write(theirs.At(0), mine.Span(0, n)).With(1, 0)); err != nil {
		log.Fatal(err)
	}
	if err := c.Post(rconn.Read(theirs.At(0), mine.Span(100, n)).With(2, verbs.SendSignaled)); err != nil {
		log.Fatal(err)
	}
	if err := c.Post(rconn.Send(mine.Span(0, 4)).With(3, verbs.SendSignaled|verbs.SendFence)); err != nil {
		log.Fatal(err)
	}
	var done [2]verbs.WC
	if err := c.Await(ctx, rconn.Sends, done[:]); err != nil {
		log.Fatal(err)
	}
	for i := range done {
		if err := done[i].Err(); err != nil {
			log.Fatal(err)
		}
	}
	if err := c.AwaitDisconnect(ctx); err != nil { // the responder has received everything
		log.Fatal(err)
	}
	fmt.Printf("read back: %s\n", mine.Bytes()[100:100+n])
	if err := <-served; err != nil {
		log.Fatal(err)
	}
	// Output:
	// offered memory holds: written by the initiator
	// read back: written by the initiator
}

func respond(l *rconn.Listener) error {
	req, err := l.Accept(ctx)
	if err != nil {
		return err
	}
	var inbox *rconn.LocalRegion
	c, err := req.Accept(ctx, rconn.Options{Setup: func(c *rconn.Conn) (err error) {
		if inbox, err = c.Alloc(64, rconn.LocalWrite); err != nil {
			return err
		}
		return c.PostRecv(0, inbox.All()) // before the peer can send
	}})
	if err != nil {
		return err
	}
	defer c.Close()
	offered, err := c.Alloc(4096, rconn.ReadWrite)
	if err != nil {
		return err
	}
	if err := c.Post(rconn.Advert(1, offered.All())); err != nil {
		return err
	}
	var message [1]verbs.WC
	if err := c.Await(ctx, rconn.Recvs, message[:]); err != nil {
		return err
	}
	fmt.Printf("offered memory holds: %s\n", offered.Bytes()[:24])
	c.Disconnect()
	return message[0].Err()
}

// Memory that is known when connecting is advertised in the private data, without a
// message. Put and Get copy and wait.
func ExampleConn_Announce() {
	l, err := rconn.Listen(ctx, listen)
	if err != nil {
		log.Fatal(err)
	}
	defer l.Close()
	go func() {
		req, err := l.Accept(ctx)
		if err != nil {
			log.Fatal(err)
		}
		c, err := req.Accept(ctx, rconn.Options{Setup: func(c *rconn.Conn) error {
			store, err := c.Alloc(1<<20, rconn.ReadWrite)
			if err != nil {
				return err
			}
			return c.Announce(7, store.All())
		}})
		if err != nil {
			log.Fatal(err)
		}
		defer c.Close()
		<-c.Done()
	}()

	c, err := rconn.Dial(ctx, l.Addr().String())
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close()
	store := c.Adverts()[0]
	fmt.Printf("region %d of %d bytes\n", store.Tag, store.Len)
	if err := c.Put(ctx, store.At(4096), []byte("kept by the peer")); err != nil {
		log.Fatal(err)
	}
	b := make([]byte, 16)
	if err := c.Get(ctx, b, store.At(4096)); err != nil {
		log.Fatal(err)
	}
	fmt.Printf("%s\n", b)
	if err := c.Put(ctx, store.At(store.Len-1), []byte("too much")); errors.Is(err, verbs.ErrRange) {
		fmt.Println("nothing goes beyond the end")
	}
	// Output:
	// region 7 of 1048576 bytes
	// kept by the peer
	// nothing goes beyond the end
}

// Clients take numbers from a counter in the server's memory, without its program. siw has no
// atomics.
func ExampleConn_Counter() {
	l, err := rconn.Listen(ctx, listen)
	if err != nil {
		log.Fatal(err)
	}
	defer l.Close()
	go func() {
		req, err := l.Accept(ctx)
		if err != nil {
			log.Fatal(err)
		}
		c, err := req.Accept(ctx, rconn.Options{Setup: func(c *rconn.Conn) error {
			next, err := c.Alloc(8, rconn.RemoteAtomic)
			if err != nil {
				return err
			}
			return c.Announce(0, next.All())
		}})
		if err != nil {
			log.Fatal(err)
		}
		defer c.Close()
		<-c.Done()
	}()

	c, err := rconn.Dial(ctx, l.Addr().String())
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close()
	next := c.Counter(c.Adverts()[0].At(0))
	for range 3 {
		ticket, err := next.Add(ctx, 1)
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println("ticket", ticket)
	}
	// Output:
	// ticket 0
	// ticket 1
	// ticket 2
}

// A responder grants access to a part of its memory with a memory window. The initiator
// writes to it and revokes it with its last message. siw has no windows.
func ExampleBind() {
	l, err := rconn.Listen(ctx, listen)
	if err != nil {
		log.Fatal(err)
	}
	defer l.Close()
	served := make(chan error, 1)
	go func() { served <- lend(l) }()

	c, err := (&rconn.Dialer{Options: rconn.Options{Adverts: 1}}).Dial(ctx, l.Addr().String())
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close()
	lent, err := c.AwaitAdvert(ctx)
	if err != nil {
		log.Fatal(err)
	}
	if err := c.Post(rconn.WriteInline(lent.At(0), []byte("written by window")).With(1, 0)); err != nil {
		log.Fatal(err)
	}
	if err := c.Post(rconn.SendInv(lent.Key).With(2, 0)); err != nil { // arrives after the WRITE
		log.Fatal(err)
	}
	if err := <-served; err != nil {
		log.Fatal(err)
	}
	// Output: given back: written by window
}

func lend(l *rconn.Listener) error {
	req, err := l.Accept(ctx)
	if err != nil {
		return err
	}
	c, err := req.Accept(ctx, rconn.Options{Setup: func(c *rconn.Conn) error {
		return c.PostRecv(0) // for a message without data
	}})
	if err != nil {
		return err
	}
	defer c.Close()
	region, err := c.Alloc(4096, rconn.LocalWrite|verbs.AccessMWBind)
	if err != nil {
		return err
	}
	window, err := c.AllocWindow()
	if err != nil {
		return err
	}
	if err := c.Post(rconn.Bind(window, region.Span(1024, 100), rconn.RemoteWrite)); err != nil {
		return err
	}
	part := window.Region()
	advert, err := part.AppendAdvert(nil)
	if err != nil {
		return err
	}
	if err := c.Post(rconn.SendInline(advert).With(2, 0)); err != nil {
		return err
	}
	var done [1]verbs.WC
	if err := c.Await(ctx, rconn.Recvs, done[:]); err != nil {
		return err
	}
	if done[0].Flags&verbs.WCWithInv != 0 && done[0].InvalidatedRKey() == part.Key {
		fmt.Printf("given back: %s\n", region.Bytes()[1024:1041])
	}
	return done[0].Err()
}

// pair returns the two ends of a connection. The client knows a region of the server.
func pair(access verbs.Access) (client, server *rconn.Conn, region *rconn.LocalRegion) {
	l, err := rconn.Listen(ctx, listen)
	if err != nil {
		log.Fatal(err)
	}
	defer l.Close()
	accepted := make(chan *rconn.Conn)
	go func() {
		req, err := l.Accept(ctx)
		if err != nil {
			log.Fatal(err)
		}
		c, err := req.Accept(ctx, rconn.Options{Setup: func(c *rconn.Conn) error {
			if region, err = c.Alloc(4096, access); err != nil {
				return err
			}
			return c.Announce(0, region.All())
		}})
		if err != nil {
			log.Fatal(err)
		}
		accepted <- c
	}()
	client, err = rconn.Dial(ctx, l.Addr().String())
	if err != nil {
		log.Fatal(err)
	}
	return client, <-accepted, region
}

// post posts requests of which the last is signaled, and waits for that one.
func post(c *rconn.Conn, ops ...rconn.Op) verbs.WC {
	for i, o := range ops {
		if i == len(ops)-1 {
			o = o.With(o.ID, o.Flags|verbs.SendSignaled)
		}
		if err := c.Post(o); err != nil {
			log.Fatal(err)
		}
	}
	var done [1]verbs.WC
	if err := c.Await(ctx, rconn.Sends, done[:]); err != nil {
		log.Fatal(err)
	}
	return done[0]
}

// Two parts of a region are gathered and written as one.
func ExampleWrite() {
	client, server, theirs := pair(rconn.RemoteWrite)
	defer client.Close()
	defer server.Close()
	mine, err := client.Alloc(64, 0)
	if err != nil {
		log.Fatal(err)
	}
	copy(mine.Bytes(), "hello")
	copy(mine.Bytes()[32:], ", peer")
	wc := post(client, rconn.Write(client.Adverts()[0].At(100), mine.Span(0, 5), mine.Span(32, 6)))
	if err := client.AwaitDelivery(ctx, client.Adverts()[0]); err != nil {
		log.Fatal(err)
	}
	fmt.Printf("%s: %q\n", wc.Opcode, theirs.Bytes()[100:111])
	// Output: RDMA_WRITE: "hello, peer"
}

// One READ scatters what it reads.
func ExampleRead() {
	client, server, theirs := pair(rconn.RemoteRead)
	defer client.Close()
	defer server.Close()
	copy(theirs.Bytes(), "head and body")
	mine, err := client.Alloc(64, rconn.LocalWrite)
	if err != nil {
		log.Fatal(err)
	}
	post(client, rconn.Read(client.Adverts()[0].At(0), mine.Span(0, 4), mine.Span(32, 9)))
	fmt.Printf("%q %q\n", mine.Bytes()[:4], mine.Bytes()[32:41])
	// Output: "head" " and body"
}

// The peer's program learns of a WRITE by a receive, with 32 bits that say what it is.
func ExampleWriteImm() {
	client, server, theirs := pair(rconn.RemoteWrite)
	defer client.Close()
	defer server.Close()
	if err := server.PostRecv(9); err != nil {
		log.Fatal(err)
	}
	mine, err := client.Register([]byte("block 42"), 0)
	if err != nil {
		log.Fatal(err)
	}
	post(client, rconn.WriteImm(42, client.Adverts()[0].At(0), mine.All()))
	var done [1]verbs.WC
	if err := server.Await(ctx, rconn.Recvs, done[:]); err != nil {
		log.Fatal(err)
	}
	fmt.Printf("receive %d: immediate %d, %q\n", done[0].ID, done[0].Imm(), theirs.Bytes()[:done[0].ByteLen])
	// Output: receive 9: immediate 42, "block 42"
}

// A lock in the peer's memory, taken by one request.
func ExampleCompareSwap() {
	client, server, _ := pair(rconn.RemoteAtomic)
	defer client.Close()
	defer server.Close()
	old, err := client.Alloc(8, rconn.LocalWrite)
	if err != nil {
		log.Fatal(err)
	}
	for range 2 {
		post(client, rconn.CompareSwap(client.Adverts()[0].At(0), 0, 17, old.All()))
		fmt.Println("held by", binary.NativeEndian.Uint64(old.Bytes()))
	}
	// Output:
	// held by 0
	// held by 17
}

// Requests without a completion of their own, and a last one that says that all are done.
func ExampleConn_Await() {
	client, server, theirs := pair(rconn.ReadWrite)
	defer client.Close()
	defer server.Close()
	var ops []rconn.Op
	for i := range 16 {
		ops = append(ops, rconn.WriteInline(client.Adverts()[0].At(i), []byte{'a' + byte(i)}).With(uint64(i), 0))
	}
	wc := post(client, ops...)
	if err := client.AwaitDelivery(ctx, client.Adverts()[0]); err != nil {
		log.Fatal(err)
	}
	fmt.Printf("%d %q\n", wc.ID, theirs.Bytes()[:16])
	// Output: 15 "abcdefghijklmnop"
}

// Mistakes are found before a request reaches the device, where they would end the connection.
func ExampleConn_Post() {
	client, server, _ := pair(rconn.RemoteRead)
	defer client.Close()
	defer server.Close()
	theirs := client.Adverts()[0]
	mine, err := client.Alloc(8192, rconn.LocalWrite)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(errors.Is(client.Post(rconn.Write(theirs.At(0), mine.Span(0, 8))), rconn.ErrAccess))
	fmt.Println(errors.Is(client.Post(rconn.Read(theirs.At(0), mine.All())), verbs.ErrRange))
	fmt.Println(client.Post(rconn.Read(theirs.At(0), mine.Span(0, 8))))
	// Output:
	// true
	// true
	// <nil>
}

// An advertisement is 32 bytes, which may be sent by any way.
func ExampleParseAdvert() {
	region := rconn.RemoteRegion{Tag: 7, Addr: 0x7f0000001000, Len: 4096, Key: 0x1234, Access: verbs.AccessRemoteRead}
	advert, err := region.AppendAdvert(nil)
	if err != nil {
		log.Fatal(err)
	}
	parsed, err := rconn.ParseAdvert(advert)
	fmt.Println(len(advert), parsed == region, err)
	advert[8]++
	_, err = rconn.ParseAdvert(advert)
	fmt.Println(errors.Is(err, rconn.ErrAdvert))
	// Output:
	// 32 true <nil>
	// true
}
