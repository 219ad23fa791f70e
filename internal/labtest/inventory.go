//go:build linux

package labtest

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/cm"
	"github.com/goverbs/verbs/internal/host"
	"github.com/goverbs/verbs/uverbs"
)

// Anonymous is the item that the runtime itself may increase.
const Anonymous = "bytes of anonymous memory"

// Inventory returns the numbers of resources that a leak would increase, by name. Before it counts, it
// closes the resources that [cm.DefaultTransport] keeps for the next connection.
func Inventory(t testing.TB) map[string]int {
	t.Helper()
	if HasAdapter() {
		warmUpAdapter(t)
	}
	cm.DefaultTransport().CloseIdle()
	warmUpNetpoller()
	resources := Must(Resources())(t) // before files are counted: it may leave some open
	runtime.GC()
	inv := map[string]int{"goroutines": runtime.NumGoroutine()}
	inv["files"] = len(Must(os.ReadDir("/proc/self/fd"))(t))
	text := Must(os.ReadFile("/proc/self/maps"))(t)
	// An adapter's queues are memory of the process. Maps of it are registers, of which an open device
	// keeps up to 9 pages for the next QPs.
	adapter := "no adapter"
	if nodes, _ := filepath.Glob("/sys/class/infiniband/" + MLX5 + "/device/infiniband_verbs/*"); len(nodes) == 1 {
		adapter = filepath.Base(nodes[0])
	}
	for line := range strings.Lines(string(text)) {
		if strings.Contains(line, "/dev/infiniband") && !strings.Contains(line, adapter) {
			inv["maps of queues"]++
		}
		// Go's own heap and thread stacks are anonymous memory as well.
		var from, to int
		if _, err := fmt.Sscanf(line, "%x-%x rw-p 00000000 00:00 0", &from, &to); err == nil {
			inv[Anonymous] += to - from
		}
	}
	for device, counts := range resources {
		for kind, n := range counts {
			inv["kernel "+kind+" of "+device] = n
		}
	}
	return inv
}

// warmUpNetpoller waits for an event: the first such wait of a process opens a file that stays
// open.
var warmUpNetpoller = sync.OnceFunc(func() {
	var fds [2]int
	if err := unix.Pipe2(fds[:], unix.O_CLOEXEC); err != nil {
		panic(err)
	}
	defer unix.Close(fds[1])
	f, err := host.NewEventFile(fds[0])
	if errors.Is(err, verbs.ErrNoRDMA) { // built with the tag nordma, which leaves devices in user space
		return
	}
	if err != nil {
		panic(err)
	}
	defer f.Close()
	if _, err := unix.Write(fds[1], []byte{0}); err != nil {
		panic(err)
	}
	calls := 0
	f.Sleep(context.Background(), time.Time{}, func(int) error { // waits once
		if calls++; calls == 1 {
			return unix.EAGAIN
		}
		return nil
	})
})

// warmAdapter is the index of the device that warmUpAdapter has used, plus one. A device that was removed
// and returns has another.
var warmAdapter atomic.Int64

// warmUpAdapter makes the kernel's driver make objects of its own, which it keeps from the first
// region, SRQ and QP of a program on (mlx5r_umr_resource_init, mlx5_ib_dev_res_srq_init).
func warmUpAdapter(t testing.TB) {
	index, err := uverbs.Device{Name: MLX5}.Index()
	if err != nil || warmAdapter.Swap(int64(index)+1) == int64(index)+1 {
		return // or it is being removed
	}
	ctx := Must(uverbs.Open(MLX5))(t)
	defer ctx.Close()
	pd := Must(ctx.AllocPD())(t)
	defer pd.Close()
	mr := Must(pd.AllocMR(1, verbs.AccessLocalWrite, uverbs.MROptions{}))(t)
	defer mr.Close()
	cq := Must(ctx.CreateCQ(uverbs.CQOptions{Depth: 1}))(t)
	defer cq.Close()
	srq := Must(pd.CreateSRQ(uverbs.SRQOptions{}))(t)
	defer srq.Close()
	qp := Must(pd.CreateQP(uverbs.QPOptions{Type: verbs.RC, SendCQ: cq, RecvCQ: cq, SRQ: srq}))(t)
	defer qp.Close()
}

// SettledInventory waits until the background work of earlier tests has ended, and returns
// the inventory.
func SettledInventory(t testing.TB) map[string]int {
	t.Helper()
	inv := Inventory(t)
	for range 60 {
		time.Sleep(500 * time.Millisecond)
		now := Inventory(t)
		inv[Anonymous] = now[Anonymous]
		if maps.Equal(now, inv) {
			break
		}
		inv = now
	}
	return inv
}

// CheckLeaks waits until no number is higher than before the test. Some resources end in the background:
// an abandoned iWARP handshake takes 10 s. A lower number is no leak: the resource was about to end
// before the test.
func CheckLeaks(t testing.TB, before map[string]int) {
	t.Helper()
	var now map[string]int
	for range 400 {
		now = Inventory(t)
		maps.DeleteFunc(now, func(name string, n int) bool { return name == Anonymous || n <= before[name] })
		if len(now) == 0 {
			return
		}
		time.Sleep(50 * time.Millisecond)
	}
	for _, name := range slices.Sorted(maps.Keys(now)) {
		t.Errorf("%s: were %d, are %d", name, before[name], now[name])
	}
	buf := make([]byte, 1<<20)
	t.Logf("%s", buf[:runtime.Stack(buf, true)])
}
