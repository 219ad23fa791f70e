package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/cm"
)

// ask is a client: it connects, sends requests one at a time, and checks the answers.
func ask(ctx context.Context, addr string, id int) (err error) {
	conn, err := cm.Dial(ctx, addr)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, conn.Close()) }()
	mr, err := conn.AllocMR(room, verbs.AccessLocalWrite)
	if err != nil {
		return err
	}
	for i := range requests {
		if _, err := conn.QP.PostRecv(verbs.RecvWR{SGL: []verbs.SGE{mr.SGE(0, room)}}); err != nil {
			return err
		}
		text := fmt.Appendf(nil, "request %d of client %d", i, id)
		if _, err := conn.QP.PostSend(verbs.SendWR{Opcode: verbs.OpSend, Flags: verbs.SendSignaled, Inline: text}); err != nil {
			return err
		}
		if _, err := conn.SendCQ.Next(ctx); err != nil {
			return err
		}
		wc, err := conn.RecvCQ.Next(ctx)
		if err != nil {
			return err
		}
		if answer := mr.Bytes()[:wc.ByteLen]; !bytes.Equal(answer, bytes.ToUpper(text)) {
			return fmt.Errorf("%q was answered by %q", text, answer)
		}
	}
	return nil
}
