// Command ud-ping sends datagrams from one UD queue pair to another, which
// answers by what they say of where they came from.
//
//	ud-ping [-d DEVICE] [-c COUNT]
package main

import (
	"errors"
	"fmt"
	"log"
	"time"

	"github.com/alecthomas/kong"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/uverbs"
)

const (
	port = 1
	qkey = 0x1ee7             // who does not know it is not heard
	room = verbs.GRHSize + 64 // for a datagram behind its global route header
)

func main() {
	var flags struct {
		Device string `short:"d" help:"RDMA device (default: the first)."`
		Count  int    `short:"c" default:"5" help:"Datagrams to send."`
	}
	kong.Parse(&flags)
	log.SetFlags(0)
	if err := run(flags.Device, flags.Count); err != nil {
		log.Fatal(err)
	}
}

// peer is a UD queue pair and memory for a datagram.
type peer struct {
	qp *uverbs.QP
	mr *uverbs.MR
}

func run(device string, count int) error {
	ctx, err := uverbs.Open(device)
	if err != nil {
		return err
	}
	defer ctx.Close()
	pd, err := ctx.AllocPD()
	if err != nil {
		return err
	}
	defer pd.Close()
	cq, err := ctx.CreateCQ(uverbs.CQOptions{Depth: 4}) // of both peers
	if err != nil {
		return err
	}
	defer cq.Close()
	var client, server peer
	for _, p := range []*peer{&client, &server} {
		if p.mr, err = pd.AllocMR(room, verbs.AccessLocalWrite, uverbs.MROptions{}); err != nil {
			return err
		}
		defer p.mr.Close()
		if p.qp, err = pd.CreateQP(uverbs.QPOptions{
			Type: verbs.UD, SendCQ: cq, RecvCQ: cq,
			Cap: verbs.QPCap{MaxSendWR: 1, MaxRecvWR: 1, MaxSendSGE: 1, MaxRecvSGE: 1, MaxInline: 64},
		}); err != nil {
			return err
		}
		defer p.qp.Close()
		if err := p.qp.StartUD(port, qkey); err != nil {
			return err
		}
	}

	// What the client must know of the server is its end: GID and QP number.
	end, err := server.qp.Addr(port)
	if err != nil {
		return err
	}
	to, err := pd.CreateAH(end.PathFrom(end))
	if err != nil {
		return err
	}
	defer to.Close()
	for i := range count {
		text, start := fmt.Sprintf("ping %d", i), time.Now()
		wc, err := deliver(client, server, to.To(end.QPNum, qkey), text)
		if err != nil {
			return err
		}
		// The server knows of the client only what came with the datagram. It
		// would keep the handles of those who write often.
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
func deliver(from, to peer, dest verbs.UDAddr, text string) (received verbs.WC, err error) {
	if _, err := to.qp.PostRecv(verbs.RecvWR{SGL: []verbs.SGE{to.mr.SGE(0, room)}}); err != nil {
		return received, err
	}
	send := verbs.SendWR{Opcode: verbs.OpSend, Flags: verbs.SendSignaled, Inline: []byte(text), To: dest}
	if _, err := from.qp.PostSend(send); err != nil {
		return received, err
	}
	completions, wc := 0, [1]verbs.WC{}
	for end := time.Now().Add(5 * time.Second); completions < 2; {
		if from.qp.SendCQ().Poll(wc[:]) == 1 {
			if err := wc[0].Err(); err != nil {
				return received, err
			}
			if wc[0].Opcode == verbs.WCRecv {
				received = wc[0]
			}
			completions++
		} else if time.Now().After(end) { // as may happen to any datagram
			return received, errors.New("the datagram got lost")
		}
	}
	return received, nil
}
