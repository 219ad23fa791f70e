//go:build linux

package cm_test

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/goverbs/verbs/cm"
	"github.com/goverbs/verbs/internal/host"
	"github.com/goverbs/verbs/internal/labtest"
)

// TestMaxConns dials more often than a listener takes connections: a peer too many is told, and
// comes in when another has gone, or a request has been rejected.
func TestMaxConns(t *testing.T) {
	labtest.RequireBoth(t)
	labtest.Each(t, func(t *testing.T, device string) {
		ctx := labtest.Within(t, 30*time.Second)
		l := labtest.Made((&cm.ListenConfig{MaxConns: 2}).Listen(ctx, labtest.AddrOf(device)+":0"))(t)
		dial := func() (*cm.Endpoint, error) { return cm.Dial(ctx, l.Addr().String()) }
		connect := func() (client, server *cm.Endpoint) {
			client, server = labtest.DialAccept(t, dial, func() (*cm.Endpoint, error) { return labtest.Must(l.Accept(ctx))(t).Accept(ctx, cm.Options{}) })
			labtest.Close(t, client)
			return client, server
		}
		_, first := connect()
		rejected := make(chan error, 1)
		go func() {
			r, err := l.Accept(ctx)
			if err == nil {
				err = r.Reject(nil)
			}
			rejected <- err
		}()
		if _, err := dial(); !labtest.Rejected(t, device, err) || strings.Contains(err.Error(), "as many connections") {
			t.Errorf("rejected by the program: %v", err)
		}
		labtest.Check(t, <-rejected)
		_, second := connect()
		_ = second
		accepted := make(chan *cm.Endpoint, 1)
		go func() {
			if r, err := l.Accept(ctx); err == nil { // the first request that is not turned away
				e, _ := r.Accept(ctx, cm.Options{})
				accepted <- e
			}
		}()
		if _, err := dial(); !labtest.Rejected(t, device, err) || errors.Is(err, syscall.ECONNREFUSED) && !strings.Contains(err.Error(), "as many connections as it takes") {
			t.Errorf("one too many: %v", err)
		}
		labtest.Check(t, first.Close())
		labtest.Check(t, first.Close())
		labtest.Made(dial())(t)
		third := <-accepted
		if s := l.Stats(); s.TurnedAway != 1 || s.Open != 2 || s.Accepted != 3 {
			t.Errorf("%+v", s)
		}
		labtest.Check(t, second.Close(), third.Close())
	})
}

// mapped returns the number of mappings of this process.
func mapped(t *testing.T) int {
	return bytes.Count(labtest.Must(os.ReadFile("/proc/self/maps"))(t), []byte{'\n'})
}

// TestMappingsCounted checks that what connections take in mappings is counted, whatever their
// driver maps.
func TestMappingsCounted(t *testing.T) {
	labtest.RequireKernel(t)
	labtest.Each(t, func(t *testing.T, device string) {
		const conns, others = 32, 24
		before, counted := mapped(t), host.Mappings()
		for range conns {
			client, server := labtest.Connect(labtest.Within(t, 30*time.Second), t, labtest.AddrOf(device)+":0", cm.Options{}, cm.Options{})
			labtest.Close(t, server)
			labtest.Close(t, client)
		}
		if more, known := mapped(t)-before, host.Mappings()-counted; more > known+others {
			t.Errorf("%d connections took %d mappings, of which %d are counted", conns, more, known)
		} else {
			t.Logf("%d connections took %d mappings, %d are counted", conns, more, known)
		}
	})
}

// TestMappingsEnd makes connections, in a process of its own, until their mappings reach the limit:
// the next one fails on both sides with a reason, and the memory of Go can still grow.
func TestMappingsEnd(t *testing.T) {
	labtest.RequireKernel(t)
	if os.Getenv("TEST_MAPPINGS") == "" {
		const limit = "/proc/sys/vm/max_map_count"
		old := labtest.Must(os.ReadFile(limit))(t)
		defer os.WriteFile(limit, old, 0)
		labtest.Check(t, os.WriteFile(limit, []byte("600"), 0))
		cmd := exec.CommandContext(labtest.Within(t, time.Minute), os.Args[0], "-test.run=^TestMappingsEnd$", "-test.v")
		cmd.Env = append(os.Environ(), "TEST_MAPPINGS=1")
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("%v\n%.4000s", err, out)
		}
		return
	}
	ctx := labtest.Within(t, 50*time.Second)
	l := labtest.Made((&cm.ListenConfig{MaxConns: -1}).Listen(ctx, labtest.AddrOf(labtest.RXE)+":0"))(t)
	failed := make(chan error, 1)
	go func() {
		for {
			r, err := l.Accept(ctx)
			if err != nil {
				return
			}
			e, err := r.Accept(ctx, cm.Options{})
			if err != nil {
				failed <- err
				return
			}
			defer e.Close()
		}
	}()
	var err error
	dialed := 0
	for ; err == nil; dialed++ {
		var e *cm.Endpoint
		if e, err = cm.Dial(ctx, l.Addr().String()); err == nil {
			labtest.Close(t, e)
		}
	}
	if !strings.Contains(err.Error(), "vm.max_map_count") || strings.Contains(err.Error(), "ulimit -l") {
		t.Errorf("dial %d: %v", dialed, err)
	}
	if errors.Is(err, syscall.ECONNREFUSED) {
		if err := <-failed; !errors.Is(err, host.ErrMappings) {
			t.Errorf("accept: %v", err)
		}
	}
	fmt.Println("after", dialed, "dials:", err)
	var heap [][]byte
	for range 256 {
		heap = append(heap, make([]byte, 1<<20))
	}
	if len(heap) != 256 || mapped(t) > 600 {
		t.Error("the heap has not grown")
	}
}
