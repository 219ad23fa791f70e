package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/cm"
	"github.com/goverbs/verbs/uverbs"
)

// ask is a client: it connects, waits for the start, sends requests one at a
// time, and checks the answers.
func ask(ctx context.Context, addr string, start <-chan struct{}, id int) (err error) {
	conn, err := (&cm.Dialer{Options: cm.Options{Events: true}}).Dial(ctx, addr)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, conn.Close()) }()
	mr, err := conn.AllocMR(room, verbs.AccessLocalWrite)
	if err != nil {
		return err
	}
	select {
	case <-start:
	case <-ctx.Done():
		return ctx.Err()
	}
	for i := range requests {
		if _, err := conn.QP.PostRecv([]verbs.RecvWR{{SGL: []verbs.SGE{mr.SGE(0, room)}}}); err != nil {
			return err
		}
		text := fmt.Appendf(nil, "request %d of client %d", i, id)
		if _, err := conn.QP.PostSend([]verbs.SendWR{{Opcode: verbs.OpSend, Flags: verbs.SendSignaled, Inline: text}}); err != nil {
			return err
		}
		var wc [1]verbs.WC
		for _, cq := range []*uverbs.CQ{conn.SendCQ, conn.RecvCQ} {
			if _, err := cq.PollWait(ctx, wc[:]); err != nil {
				return err
			}
			if err := wc[0].Err(); err != nil {
				return err
			}
		}
		if answer := mr.Bytes()[:wc[0].ByteLen]; !bytes.Equal(answer, bytes.ToUpper(text)) {
			return fmt.Errorf("%q was answered by %q", text, answer)
		}
	}
	return nil
}
