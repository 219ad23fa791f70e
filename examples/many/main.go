// Command many makes many connections in one process, which has both ends of them, and prints what
// they cost: time, memory, mappings and files, the pause of a garbage collection, and the time of
// Shutdown. docs/performance.md explains the sizes, and has its results.
//
//	many [-d DEVICE] [-n CONNECTIONS] [-at DIALS] [-rsock]
//
// With -rsock they are connections of package rsock whose rings are small while they are idle.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log"
	"net/netip"
	"os"
	"runtime"
	"strings"
	"sync"
	"time"

	"github.com/goverbs/verbs/cm"
	_ "github.com/goverbs/verbs/soft" // VERBS_SOFT makes a device in user space
	"github.com/goverbs/verbs/uverbs"
)

// service is a server and its clients.
type service interface {
	// dial connects client i and returns what asks the server and checks its answer.
	dial(ctx context.Context, i int) (ask func(context.Context) error, err error)
	// close ends the clients, and waits until the server has noticed.
	close(ctx context.Context) error
}

func main() {
	log.SetFlags(0)
	device := flag.String("d", "", "RDMA device (default: the first)")
	conns := flag.Int("n", 100, "connections")
	at := flag.Int("at", 16, "dials, and up to 1024 requests, at a time")
	stream := flag.Bool("rsock", false, "connections of package rsock")
	flag.Parse()
	if err := run(*device, *conns, *at, *stream); err != nil {
		log.Fatal(err)
	}
}

func run(device string, conns, at int, stream bool) error {
	if conns < 1 || at < 1 {
		return fmt.Errorf("%d connections, %d at a time: want one at least", conns, at)
	}
	dev, err := uverbs.Open(device)
	if err != nil {
		return err
	}
	addrs, err := cm.DeviceAddrs(dev.Device())
	if err != nil {
		return err
	}
	addr := netip.AddrPortFrom(addrs[0], 0).String()
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	asking := min(at, 1024)
	var s service
	if stream {
		s, err = newStreams(ctx, addr, conns)
	} else {
		s, err = newMessages(ctx, dev, addr, conns, asking)
	}
	if err != nil {
		return err
	}
	before := measure()
	asks := make([]func(context.Context) error, conns)
	setUp, err := each(conns, at, func(i int) (err error) { asks[i], err = s.dial(ctx, i); return err })
	if err != nil {
		return err
	}
	asked, err := each(conns, asking, func(i int) error { return asks[i](ctx) })
	if err != nil {
		return err
	}
	after := measure()
	begin := time.Now()
	if err := s.close(ctx); err != nil {
		return err
	}
	fmt.Printf("%d connections: %v for a set-up, %v for a request\n", conns, setUp.Round(time.Microsecond), asked.Round(time.Microsecond))
	fmt.Printf("memory of both ends of one: %d KiB resident, %d KiB locked, %d KiB of Go's heap\n",
		(after.resident-before.resident)>>10/conns, (after.locked-before.locked)>>10/conns, (after.heap-before.heap)>>10/conns)
	fmt.Printf("of the process: %d mappings, %d files, a pause of %v to collect garbage\n", after.mappings, after.files, after.pause.Round(time.Microsecond))
	fmt.Printf("closed in %v\n", time.Since(begin).Round(time.Millisecond))
	return nil
}

// each calls do for 0 to n-1, at of them at a time, and returns the time for one.
func each(n, at int, do func(i int) error) (time.Duration, error) {
	var wg sync.WaitGroup
	errs := make([]error, n)
	free := make(chan struct{}, at)
	begin := time.Now()
	for i := range n {
		free <- struct{}{}
		wg.Go(func() {
			errs[i] = do(i)
			<-free
		})
	}
	wg.Wait()
	took := time.Since(begin) / time.Duration(n)
	for _, err := range errs {
		if err != nil {
			return took, err // one of perhaps thousands
		}
	}
	return took, nil
}

// cost is what the process uses.
type cost struct {
	resident, locked, heap int // bytes
	mappings, files        int
	pause                  time.Duration // of a garbage collection
}

func measure() (c cost) {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	c.heap, c.pause = int(m.HeapAlloc), time.Duration(m.PauseNs[(m.NumGC+255)%256])
	// Without /proc the rest is 0.
	status, _ := os.ReadFile("/proc/self/status")
	for line := range strings.Lines(string(status)) {
		var kib int
		switch name, value, _ := strings.Cut(line, ":"); name {
		case "VmRSS":
			fmt.Sscan(value, &kib)
			c.resident = kib << 10
		case "VmPin":
			fmt.Sscan(value, &kib)
			c.locked = kib << 10
		}
	}
	maps, _ := os.ReadFile("/proc/self/maps")
	c.mappings = strings.Count(string(maps), "\n")
	files, _ := os.ReadDir("/proc/self/fd")
	c.files = len(files)
	return c
}

var errAnswer = errors.New("wrong answer")
