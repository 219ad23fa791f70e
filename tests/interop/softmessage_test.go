package interop

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/cm"
	"github.com/goverbs/verbs/internal/labtest"
)

// messageSize is the size of the messages of rdma_client and rdma_server.
const messageSize = 16

// testSoftRDMAClient runs rdma-core's rdma_client and rdma_server, which exchange a message.
func testSoftRDMAClient(t *testing.T) {
	options := cm.Options{
		Cap: verbs.QPCap{MaxSendWR: 1, MaxRecvWR: 1, MaxSendSGE: 1, MaxRecvSGE: 1, MaxInline: messageSize},
		Setup: func(e *cm.Endpoint) error {
			mr, err := e.AllocMR(messageSize, verbs.AccessLocalWrite)
			if err == nil {
				_, err = e.QP.PostRecv(verbs.RecvWR{SGL: []verbs.SGE{mr.SGE(0, messageSize)}})
			}
			return err
		},
	}
	t.Run("Go server", func(t *testing.T) {
		ctx := timeLimit(t)
		l := labtest.Made(cm.Listen(ctx, softSelf+":7470"))(t)
		client := startC(t, "rdma_client", "-s", softSelf, "-p", "7470")
		e := labtest.Made(labtest.Must(l.Accept(ctx))(t).Accept(ctx, options))(t)
		labtest.Check(t, receiveMessage(ctx, e), sendMessage(ctx, e))
		<-e.Done()
		if err := e.Err(); !errors.Is(err, verbs.ErrDisconnected) {
			t.Error(err)
		}
		client.Wait()
	})
	t.Run("Go client", func(t *testing.T) {
		ctx := timeLimit(t)
		server := startC(t, "rdma_server", "-s", softKernel, "-p", "7472")
		labtest.WaitListening(t, "7472")
		e := labtest.Made((&cm.Dialer{Options: options}).Dial(ctx, softKernel+":7472"))(t)
		labtest.Check(t, sendMessage(ctx, e), receiveMessage(ctx, e))
		server.Wait()
	})
}

func sendMessage(ctx context.Context, e *cm.Endpoint) error {
	if _, err := e.QP.PostSend(verbs.SendWR{Opcode: verbs.OpSend, Flags: verbs.SendSignaled, Inline: make([]byte, messageSize)}); err != nil {
		return err
	}
	wc, err := e.SendCQ.Next(ctx)
	return errors.Join(err, wc.Err())
}

func receiveMessage(ctx context.Context, e *cm.Endpoint) error {
	wc, err := e.RecvCQ.Next(ctx)
	if err == nil && wc.ByteLen != messageSize {
		err = fmt.Errorf("message of %d bytes", wc.ByteLen)
	}
	return errors.Join(err, wc.Err())
}
