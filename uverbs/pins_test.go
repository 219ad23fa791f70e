//go:build linux

package uverbs_test

import (
	"errors"
	"io"
	"runtime"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/internal/labtest"
	"github.com/goverbs/verbs/uverbs"
)

// TestQueuesAreExplained: where queues are the process's memory, an error of making or resizing one
// blames the limit of locked memory, as that of a registration does on all devices.
func TestQueuesAreExplained(t *testing.T) {
	labtest.RequireKernel(t)
	labtest.Each(t, func(t *testing.T, device string) {
		// The kernel asks for the capability of the thread. No other goroutine gets this one.
		runtime.LockOSThread()
		var data [2]unix.CapUserData
		header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
		labtest.Check(t, unix.Capget(&header, &data[0]))
		data[0].Effective &^= 1 << unix.CAP_IPC_LOCK
		labtest.Check(t, unix.Capset(&header, &data[0]))

		c := labtest.OpenDevice(t, device)
		pd := labtest.Made(c.AllocPD())(t)
		cq := labtest.Made(c.CreateCQ(uverbs.CQOptions{Depth: 10}))(t)
		var before unix.Rlimit
		labtest.Check(t, unix.Getrlimit(unix.RLIMIT_MEMLOCK, &before))
		defer unix.Setrlimit(unix.RLIMIT_MEMLOCK, &before)
		labtest.Check(t, unix.Setrlimit(unix.RLIMIT_MEMLOCK, &unix.Rlimit{Cur: 64 << 10, Max: before.Max}))
		for _, test := range []struct {
			what  string
			queue bool
			make  func() (io.Closer, error)
		}{
			{"MR", false, func() (io.Closer, error) { return pd.AllocMR(65<<10, 0, uverbs.MROptions{}) }},
			{"CQ", true, func() (io.Closer, error) { return c.CreateCQ(uverbs.CQOptions{Depth: 2000}) }},
			{"QP", true, func() (io.Closer, error) {
				return pd.CreateQP(uverbs.QPOptions{SendCQ: cq, RecvCQ: cq, Cap: verbs.QPCap{MaxSendWR: 1000}})
			}},
			{"SRQ", true, func() (io.Closer, error) { return pd.CreateSRQ(uverbs.SRQOptions{MaxWR: 2000, MaxSGE: 2}) }},
			{"size", true, func() (io.Closer, error) { return io.NopCloser(nil), cq.Resize(2000) }},
		} {
			made, err := test.make()
			if test.queue && !labtest.PinsQueues(t, device) {
				if err == nil {
					made.Close()
				} else if !errors.Is(err, errors.ErrUnsupported) { // siw resizes no CQ
					t.Errorf("%s: %v", test.what, err)
				}
				continue
			}
			if err == nil {
				made.Close()
			}
			if errors.Is(err, errors.ErrUnsupported) { // SRQs and resizing, of erdma
				continue
			}
			if !errors.Is(err, unix.ENOMEM) || !strings.Contains(err.Error(), "locked memory is limited to 64 KiB, of which") || !strings.Contains(err.Error(), "ulimit -l") {
				t.Errorf("%s: %v", test.what, err)
			}
		}
	})
}
