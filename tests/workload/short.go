package workload

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"time"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/cm"
	"github.com/goverbs/verbs/rsock"
	"github.com/goverbs/verbs/uverbs"
)

// Short accepts a connection of tests/interop/testdata/short.c by package cm, and then one by
// package rsock, on a host. client starts the program with a port and arguments; it sends a message
// and disconnects at once. Short returns an error unless the message comes, and then the end.
func Short(ctx context.Context, transport *cm.Transport, host string, client func(port uint16, args ...string) (wait func())) error {
	l, err := (&cm.ListenConfig{Transport: transport}).Listen(ctx, host+":0")
	if err != nil {
		return err
	}
	defer l.Close()
	wait := client(l.Addr().Port())
	if err := acceptShort(ctx, l); err != nil {
		return fmt.Errorf("cm: %w", err)
	}
	wait()

	rl, err := (&rsock.ListenConfig{Transport: transport}).Listen(ctx, "rdma", host+":0")
	if err != nil {
		return err
	}
	defer rl.Close()
	wait = client(uint16(rl.Addr().(*net.TCPAddr).Port), "-r")
	conn, err := rl.Accept()
	if err != nil {
		return err
	}
	defer conn.Close()
	conn.SetDeadline(time.Now().Add(20 * time.Second))
	if got, err := io.ReadAll(conn); err != nil || string(got) != shortMessage {
		return fmt.Errorf("rsock: %q, %v", got, err)
	}
	wait()
	return nil
}

const shortMessage = "hello\x00"

func acceptShort(ctx context.Context, l *cm.Listener) error {
	r, err := l.Accept(ctx)
	if err != nil {
		return err
	}
	var mr *uverbs.MR
	e, err := r.Accept(ctx, cm.Options{Setup: func(e *cm.Endpoint) (err error) {
		if mr, err = e.AllocMR(64, verbs.AccessLocalWrite); err == nil {
			_, err = e.QP.PostRecv(verbs.RecvWR{SGL: []verbs.SGE{mr.SGE(0, 64)}})
		}
		return err
	}})
	if err != nil {
		return err
	}
	defer e.Close()
	if wc, err := e.RecvCQ.Next(ctx); err != nil || string(mr.Bytes()[:wc.ByteLen]) != shortMessage {
		return fmt.Errorf("%+v, %v", wc, err)
	}
	<-e.Done()
	if err := e.Err(); !errors.Is(err, verbs.ErrDisconnected) {
		return fmt.Errorf("ended by %w", err)
	}
	return nil
}
