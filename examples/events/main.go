// Command events shows how to wait without polling: for completions, with a deadline,
// with PollWait and by hand, and for asynchronous events.
//
//	events [-d DEVICE]
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log"
	"net/netip"
	"time"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/cm"
	_ "github.com/goverbs/verbs/soft" // VERBS_SOFT makes a device in user space
	"github.com/goverbs/verbs/uverbs"
)

func main() {
	log.SetFlags(0)
	device := flag.String("d", "", "RDMA device (default: the first)")
	flag.Parse()
	if err := run(*device); err != nil {
		log.Fatal(err)
	}
}

func run(device string) error {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	dev, err := uverbs.Open(device)
	if err != nil {
		return err
	}
	defer dev.Close()
	pd, err := dev.AllocPD()
	if err != nil {
		return err
	}
	defer pd.Close()
	channel, err := dev.CreateCompChannel() // carries the events of any CQs
	if err != nil {
		return err
	}
	defer channel.Close()
	cq, err := dev.CreateCQ(uverbs.CQOptions{Depth: 8, Channel: channel})
	if err != nil {
		return err
	}
	defer cq.Close()
	mr, err := pd.AllocMR(4096, verbs.AccessLocalWrite, uverbs.MROptions{})
	if err != nil {
		return err
	}
	defer mr.Close()
	// An asynchronous event reports that fewer than 2 of its 4 receives are left.
	srq, err := pd.CreateSRQ(uverbs.SRQOptions{MaxWR: 4, MaxSGE: 1})
	if err != nil {
		return err
	}
	defer srq.Close()
	for range 4 {
		if _, err := srq.PostRecv(verbs.RecvWR{SGL: []verbs.SGE{mr.SGE(0, 64)}}); err != nil {
			return err
		}
	}
	if err := srq.SetLimit(2); err != nil {
		return err
	}
	peer, closeBoth, err := connect(ctx, dev, cm.Options{PD: pd, SRQ: srq, SendCQ: cq, RecvCQ: cq})
	if err != nil {
		return err
	}
	defer closeBoth()
	send := func(text string) {
		time.Sleep(50 * time.Millisecond)
		peer.QP.PostSend(verbs.SendWR{Opcode: verbs.OpSend, Flags: verbs.SendSignaled, Inline: []byte(text)})
	}

	// A wait ends when its context does, and then takes no completion.
	var wcs [4]verbs.WC
	brief, stop := context.WithTimeout(ctx, 20*time.Millisecond)
	_, err = cq.PollWait(brief, wcs[:])
	stop()
	if !errors.Is(err, context.DeadlineExceeded) {
		return fmt.Errorf("waiting for nothing gave %v", err)
	}
	fmt.Println("PollWait with a deadline:", err)

	// PollWait is all that most programs need.
	go send("first")
	if _, err := cq.PollWait(ctx, wcs[:]); err != nil {
		return err
	}
	fmt.Printf("PollWait: received %q\n", mr.Bytes()[:wcs[0].ByteLen])

	// By hand: arm, poll again for completions from before that, and only then wait.
	// CompChannel.Wait waits for many CQs.
	go send("second")
	for n := 0; n == 0; {
		if err := cq.Arm(false); err != nil {
			return err
		}
		if n = cq.Poll(wcs[:]); n == 0 {
			if err := cq.Wait(ctx); err != nil {
				return err
			}
		}
	}
	fmt.Printf("Arm, Poll, Wait, Poll: received %q\n", mr.Bytes()[:wcs[0].ByteLen])

	// Asynchronous events.
	go send("third, which leaves one receive")
	for event, err := range dev.AsyncEvents(ctx) {
		if err != nil {
			return err
		}
		fmt.Println("asynchronous event:", event.Type)
		if event.Type == verbs.EventSRQLimitReached && event.SRQ == srq {
			break
		}
	}
	return nil
}

// connect makes a connection of this process with itself. It returns the dialing end; the
// accepting end uses opt.
func connect(ctx context.Context, dev *uverbs.Context, opt cm.Options) (*cm.Endpoint, func(), error) {
	addrs, err := cm.DeviceAddrs(dev.Device())
	if err != nil {
		return nil, nil, err
	}
	l, err := cm.Listen(ctx, netip.AddrPortFrom(addrs[0], 0).String())
	if err != nil {
		return nil, nil, err
	}
	defer l.Close()
	var accepted *cm.Endpoint
	done := make(chan error, 1)
	go func() {
		req, err := l.Accept(ctx)
		if err == nil {
			accepted, err = req.Accept(ctx, opt)
		}
		done <- err
	}()
	dialed, err := cm.Dial(ctx, l.Addr().String())
	if err != nil {
		return nil, nil, err
	}
	if err := <-done; err != nil {
		dialed.Close()
		return nil, nil, err
	}
	return dialed, func() { dialed.Close(); accepted.Close() }, nil
}
