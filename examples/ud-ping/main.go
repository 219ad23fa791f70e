// Command ud-ping sends datagrams from one UD queue pair to another, which answers to the
// source address in each datagram.
//
//	ud-ping [-d DEVICE] [-c COUNT]
package main

import (
	"context"
	"flag"
	"fmt"
	"log"
	"time"

	"github.com/goverbs/verbs"
	_ "github.com/goverbs/verbs/soft" // VERBS_SOFT makes a device in user space
	"github.com/goverbs/verbs/uverbs"
)

const (
	port = 1
	qkey = 0x1ee7             // datagrams with another key are dropped
	room = verbs.GRHSize + 64 // for the global route header and a datagram
)

func main() {
	log.SetFlags(0)
	device := flag.String("d", "", "RDMA device (default: the first)")
	count := flag.Int("c", 5, "datagrams to send")
	flag.Parse()
	if err := run(*device, *count); err != nil {
		log.Fatal(err)
	}
}

// endpoint is a UD queue pair and memory for a datagram.
type endpoint struct {
	qp *uverbs.QP
	mr *uverbs.MR
}

func run(device string, count int) error {
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
	events, err := dev.CreateCompChannel()
	if err != nil {
		return err
	}
	defer events.Close()
	cq, err := dev.CreateCQ(uverbs.CQOptions{Depth: 4, Channel: events}) // for both endpoints
	if err != nil {
		return err
	}
	defer cq.Close()
	var client, server endpoint
	for _, e := range []*endpoint{&client, &server} {
		if e.mr, err = pd.AllocMR(room, verbs.AccessLocalWrite, uverbs.MROptions{}); err != nil {
			return err
		}
		defer e.mr.Close()
		if e.qp, err = pd.CreateQP(uverbs.QPOptions{Type: verbs.UD, SendCQ: cq, RecvCQ: cq}); err != nil {
			return err
		}
		defer e.qp.Close()
		if err := e.qp.StartUD(port, qkey); err != nil {
			return err
		}
	}

	// The client must know the server's address: GID and QP number.
	addr, err := server.qp.Addr(port)
	if err != nil {
		return err
	}
	to, err := pd.CreateAH(addr.PathFrom(addr))
	if err != nil {
		return err
	}
	defer to.Close()
	for i := range count {
		text, start := fmt.Sprintf("ping %d", i), time.Now()
		wc, err := deliver(client, server, to.To(addr.QPNum, qkey), text)
		if err != nil {
			return err
		}
		// The server knows only the client's address in the datagram. A real
		// server would cache the handles of frequent senders.
		got := server.mr.Bytes()[:wc.ByteLen]
		reply, err := pd.CreateReplyAH(port, &wc, got[:verbs.GRHSize])
		if err != nil {
			return err
		}
		wc, err = deliver(server, client, reply.To(wc.SrcQP, qkey), string(got[verbs.GRHSize:]))
		reply.Close()
		if err != nil {
			return err
		}
		answer := client.mr.Bytes()[verbs.GRHSize:wc.ByteLen]
		fmt.Printf("%q answered by QP %d: %q in %v\n", text, wc.SrcQP, answer, time.Since(start).Round(time.Microsecond))
	}
	fmt.Printf("%d datagrams sent and answered\n", count)
	return nil
}

// deliver sends a datagram and returns the receiver's completion.
func deliver(from, to endpoint, dest verbs.UDAddr, text string) (received verbs.WC, err error) {
	if _, err := to.qp.PostRecv(verbs.RecvWR{SGL: []verbs.SGE{to.mr.SGE(0, room)}}); err != nil {
		return received, err
	}
	send := verbs.SendWR{Opcode: verbs.OpSend, Flags: verbs.SendSignaled, Inline: []byte(text), To: dest}
	if _, err := from.qp.PostSend(send); err != nil {
		return received, err
	}
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel() // any datagram may be lost
	for range 2 {
		wc, err := from.qp.SendCQ().Next(ctx)
		if err != nil {
			return received, err
		}
		if wc.Opcode == verbs.WCRecv {
			received = wc
		}
	}
	return received, nil
}
