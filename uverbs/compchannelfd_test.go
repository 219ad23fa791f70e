package uverbs_test

import (
	"testing"

	"golang.org/x/sys/unix"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/internal/labtest"
)

// TestSyscallConn waits for a completion with poll(2).
func TestSyscallConn(t *testing.T) {
	labtest.Each(t, func(t *testing.T, device string) {
		a, b := labtest.NewPair(t, labtest.PairOptions{Device: device, Events: true})
		raw := labtest.Must(b.RecvCQ.Channel().SyscallConn())(t)
		readable := func(wait int) (n int) {
			var polled error
			if err := raw.Control(func(fd uintptr) {
				for polled = unix.EINTR; polled == unix.EINTR; { // Go's scheduler sends signals
					n, polled = unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, wait)
				}
			}); err != nil || polled != nil {
				t.Fatal(err, polled)
			}
			return n
		}
		if err := b.RecvCQ.Arm(false); err != nil {
			t.Fatal(err)
		}
		if readable(0) != 0 {
			t.Error("readable before there was a completion")
		}
		if _, err := b.PostRecv(verbs.RecvWR{SGL: []verbs.SGE{b.MR.SGE(0, 64)}}); err != nil {
			t.Fatal(err)
		}
		if _, err := a.QP.PostSend(verbs.SendWR{Opcode: verbs.OpSend, Inline: []byte("x")}); err != nil {
			t.Fatal(err)
		}
		if readable(20_000) != 1 {
			t.Error("not readable when there is a completion")
		}
	})
}
