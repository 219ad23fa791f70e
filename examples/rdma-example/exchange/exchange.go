// Package exchange is shared by client and server of rdma-example. It exchanges the
// messages in which each describes a buffer of its memory to the other. The C programs of
// that name send the same messages.
package exchange

import (
	"context"
	"encoding/binary"
	"fmt"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/cm"
	"github.com/goverbs/verbs/uverbs"
)

// DefaultPort is the server's default port.
const DefaultPort = "20886"

// Attr is the message, packed and in the machine's byte order. It has all that the peer
// needs to use RDMA on the buffer: the device checks address and key.
type Attr struct {
	Addr     uint64
	Len, Key uint32
}

const (
	attrSize = 16
	maxLen   = 1 << 30
)

func (a Attr) String() string {
	const line = "---------------------------------------------------------"
	return fmt.Sprintf("%s\nbuffer attr, addr: %#x , len: %d , stag : %#x \n%[1]s", line, a.Addr, a.Len, a.Key)
}

// PostRecv returns a [cm.Options.Setup] that posts a receive for the peer's message, as a
// receive must be posted before its message arrives. Its memory is a memory region (MR):
// pinned pages that the device knows by a key. The region belongs to the endpoint's
// protection domain (PD), as its queue pair (QP) does; QPs of other PDs cannot use it.
func PostRecv(inbox **uverbs.MR) func(*cm.Endpoint) error {
	return func(e *cm.Endpoint) (err error) {
		if *inbox, err = e.AllocMR(attrSize, verbs.AccessLocalWrite); err != nil {
			return err
		}
		_, err = e.QP.PostRecv(verbs.RecvWR{SGL: []verbs.SGE{(*inbox).SGE(0, attrSize)}})
		return err
	}
}

// Recv waits for the peer's message. The device reports in a completion queue (CQ) that
// the receive has completed, and how many bytes came. A peer may send anything.
func Recv(ctx context.Context, e *cm.Endpoint, inbox *uverbs.MR) (a Attr, err error) {
	wc, err := e.RecvCQ.Next(ctx)
	if err != nil {
		return a, fmt.Errorf("receive buffer attributes: %w", err)
	}
	if _, err := binary.Decode(inbox.Bytes()[:wc.ByteLen], binary.NativeEndian, &a); err != nil {
		return a, fmt.Errorf("buffer attributes of %d bytes: %w", wc.ByteLen, err)
	}
	if a.Len == 0 || a.Len > maxLen {
		return a, fmt.Errorf("the peer's buffer has %d bytes, not 1 to %d", a.Len, maxLen)
	}
	return a, nil
}

// Send describes a region to the peer.
func Send(ctx context.Context, e *cm.Endpoint, mr *uverbs.MR) error {
	message, err := binary.Append(nil, binary.NativeEndian, Attr{mr.Addr(), uint32(mr.Len()), mr.RKey()})
	if err != nil {
		return err
	}
	// A short message can be sent inline: it is copied to the send queue, without a region.
	return Do(ctx, e, verbs.SendWR{Opcode: verbs.OpSend, Inline: message})
}

// Do posts a request and waits until it has completed. Requests that are not signaled
// complete only if they fail.
func Do(ctx context.Context, e *cm.Endpoint, wr verbs.SendWR) error {
	wr.Flags |= verbs.SendSignaled
	if _, err := e.QP.PostSend(wr); err != nil {
		return err
	}
	_, err := e.SendCQ.Next(ctx)
	return err
}
