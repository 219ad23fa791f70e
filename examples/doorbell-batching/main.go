// Command doorbell-batching posts many requests with one doorbell and one completion:
// RDMA WRITEs of the words of a text, and a SEND of their number. The connection manager
// connects both sides, so it also runs on iWARP.
//
//	doorbell-batching [-d DEVICE]
package main

import (
	"bytes"
	"context"
	"encoding/binary"
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
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	if err := run(ctx, *device); err != nil {
		log.Fatal(err)
	}
}

const text = "Hello from chained RDMA writes!"

func run(ctx context.Context, device string) error {
	dev, err := uverbs.Open(device)
	if err != nil {
		return err
	}
	defer dev.Close()
	addrs, err := cm.DeviceAddrs(dev.Device())
	if err != nil {
		return err
	}
	l, err := cm.Listen(ctx, netip.AddrPortFrom(addrs[0], 0).String())
	if err != nil {
		return err
	}
	defer l.Close()

	// The receiving side: memory to write to, and a receive for the message.
	var receiver *cm.Endpoint
	var memory, inbox *uverbs.MR
	accepted := make(chan error, 1)
	go func() {
		req, err := l.Accept(ctx)
		if err == nil {
			receiver, err = req.Accept(ctx, cm.Options{Setup: func(e *cm.Endpoint) (err error) {
				if memory, err = e.AllocMR(4096, verbs.AccessLocalWrite|verbs.AccessRemoteWrite); err != nil {
					return err
				}
				if inbox, err = e.AllocMR(4, verbs.AccessLocalWrite); err != nil {
					return err
				}
				_, err = e.QP.PostRecv(verbs.RecvWR{SGL: []verbs.SGE{inbox.SGE(0, 4)}})
				return err
			}})
		}
		accepted <- err
	}()
	sender, err := cm.Dial(ctx, l.Addr().String())
	if err != nil {
		return err
	}
	defer sender.Close()
	if err := <-accepted; err != nil {
		return err
	}
	defer receiver.Close()

	// The batch. In one process the peer's address and key are known.
	source, err := sender.AllocMR(4096, 0)
	if err != nil {
		return err
	}
	copy(source.Bytes(), text)
	var batch []verbs.SendWR
	off := 0
	for word := range bytes.SplitAfterSeq([]byte(text), []byte(" ")) {
		batch = append(batch, verbs.SendWR{
			ID: uint64(len(batch)), Opcode: verbs.OpRDMAWrite, SGL: []verbs.SGE{source.SGE(off, len(word))},
			RemoteAddr: memory.Addr() + uint64(off), RKey: memory.RKey(),
		})
		off += len(word)
	}
	count := binary.NativeEndian.AppendUint32(nil, uint32(len(batch)))
	batch = append(batch, verbs.SendWR{ID: uint64(len(batch)), Opcode: verbs.OpSend, Flags: verbs.SendSignaled, Inline: count})
	if _, err := sender.QP.PostSend(batch...); err != nil {
		return err
	}

	for _, cq := range []*uverbs.CQ{sender.SendCQ, receiver.RecvCQ} {
		wc, err := cq.Next(ctx)
		if err != nil {
			return err
		}
		fmt.Printf("completion of %v\n", wc.Opcode)
	}
	// The message arrives after the writes, so their data is in memory.
	fmt.Printf("%d writes, one doorbell, one completion: %q\n", binary.NativeEndian.Uint32(inbox.Bytes()), memory.Bytes()[:off])
	return nil
}
