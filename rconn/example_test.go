package rconn_test

import (
	"context"
	"errors"
	"fmt"
	"log"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/rconn"
)

// Variables of the examples. TestExamples sets them.
var (
	ctx    = context.Background()
	listen = "10.9.0.1:0" // any free port
)

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
