//go:build linux

package uverbs_test

import (
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/internal/labtest"
	"github.com/goverbs/verbs/rdmatest"
)

// readable reports whether poll(2) finds fd readable within a time.
func readable(t *testing.T, fd int, wait time.Duration) bool {
	t.Helper()
	for end := time.Now().Add(wait); ; {
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, int(max(time.Until(end).Milliseconds(), 0)))
		if err == unix.EINTR { // Go's scheduler sends signals
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		return n == 1
	}
}

// TestCompChannelFD waits for a completion with poll(2).
func TestCompChannelFD(t *testing.T) {
	labtest.RequireKernel(t)
	labtest.Each(t, func(t *testing.T, device string) {
		a, b := labtest.NewPair(t, device, rdmatest.PairOptions{Events: true})
		ch := b.RecvCQ.Channel()
		for i := range 20 {
			if err := b.RecvCQ.Arm(false); err != nil {
				t.Fatal(err)
			}
			if readable(t, ch.FD(), 0) {
				t.Error("readable before there is a completion")
			}
			if cq, err := ch.TryWait(); cq != nil || err != nil {
				t.Errorf("before there is a completion: %v, %v", cq, err)
			}
			if _, err := b.PostRecv(verbs.RecvWR{SGL: []verbs.SGE{b.MR.SGE(0, 64)}}); err != nil {
				t.Fatal(err)
			}
			if _, err := a.QP.PostSend(verbs.SendWR{Opcode: verbs.OpSend, Inline: []byte("x")}); err != nil {
				t.Fatal(err)
			}
			if !readable(t, ch.FD(), 20*time.Second) {
				t.Fatalf("not readable when there is completion %d", i)
			}
			if cq, err := ch.TryWait(); cq != b.RecvCQ || err != nil {
				t.Errorf("the event is of %p, %v, not of %p", cq, err, b.RecvCQ)
			}
			if n := b.RecvCQ.Poll(make([]verbs.WC, 2)); n != 1 {
				t.Errorf("%d completions, not 1", n)
			}
		}
	})
}
