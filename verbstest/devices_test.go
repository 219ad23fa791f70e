package verbstest_test

import (
	"context"
	"strings"
	"testing"
	"testing/cryptotest"
	"testing/synctest"
	"time"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/cm"
	"github.com/goverbs/verbs/uverbs"
	"github.com/goverbs/verbs/verbstest"
)

const addr = "10.0.0.2:7471"

// serve accepts a connection and receives messages until it ends. The number of good ones is
// sent to the channel.
func serve(t *testing.T, ctx context.Context, transport *cm.Transport, size int) <-chan int {
	l, err := (&cm.ListenConfig{Transport: transport}).Listen(ctx, addr)
	if err != nil {
		t.Fatal(err)
	}
	received := make(chan int, 1)
	go func() {
		defer close(received)
		defer l.Close()
		req, err := l.Accept(ctx)
		if err != nil {
			t.Error(err)
			return
		}
		var mr *uverbs.MR
		post := func(e *cm.Endpoint) error {
			_, err := e.QP.PostRecv(verbs.RecvWR{SGL: []verbs.SGE{mr.SGE(0, size)}})
			return err
		}
		e, err := req.Accept(ctx, cm.Options{Setup: func(e *cm.Endpoint) (err error) {
			if mr, err = e.AllocMR(size, verbs.AccessLocalWrite); err != nil {
				return err
			}
			for range 8 {
				if err := post(e); err != nil {
					return err
				}
			}
			return nil
		}})
		if err != nil {
			t.Error(err)
			return
		}
		defer e.Close()
		count := 0
		for {
			if _, err := e.RecvCQ.Next(ctx); err != nil {
				received <- count
				return
			}
			count++
			if post(e) != nil {
				received <- count
				return
			}
		}
	}()
	return received
}

// transfer sends messages, each after the completion of the one before, and returns the number
// of completions without error, and the error.
func transfer(t *testing.T, ctx context.Context, transport *cm.Transport, size, count int) (int, error) {
	e, err := (&cm.Dialer{Transport: transport}).Dial(ctx, addr)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := e.Close(); err != nil {
			t.Errorf("close endpoint: %v", err)
		}
	}()
	mr, err := e.AllocMR(size, verbs.AccessLocalWrite)
	if err != nil {
		t.Fatal(err)
	}
	for i := range count {
		if _, err := e.QP.PostSend(verbs.SendWR{Opcode: verbs.OpSend, Flags: verbs.SendSignaled, SGL: []verbs.SGE{mr.SGE(0, size)}}); err != nil {
			return i, err
		}
		wc, err := e.SendCQ.Next(ctx)
		if err == nil {
			err = wc.Err()
		}
		if err != nil {
			return i, err
		}
	}
	return count, nil
}

// run transfers messages within a bubble and returns the trace.
func run(t *testing.T, o verbstest.Options, prepare func(*verbstest.Network), count int) (sent, received int, trace string, took time.Duration, err error) {
	synctest.Test(t, func(t *testing.T) {
		begin := time.Now()
		n := verbstest.NewNetwork(o)
		verbstest.TraceOnFailure(t, n)
		a, b := verbstest.NewHost(t, n, "10.0.0.1"), verbstest.NewHost(t, n, "10.0.0.2")
		prepare(n)
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		const size = 10000
		server := serve(t, ctx, b, size)
		sent, err = transfer(t, ctx, a, size, count)
		took = time.Since(begin)
		received = <-server
		<-server // It has closed everything.
		trace = n.Trace()
	})
	return sent, received, trace, took, err
}

func TestDevicesRecoverFromFaults(t *testing.T) {
	const count = 200
	for name, l := range map[string]verbstest.Link{
		"perfect":   {},
		"loss":      {Loss: 0.02},
		"duplicate": {Duplicate: 0.05},
		"corrupt":   {Corrupt: 0.02},
		"reorder":   {Delay: 50 * time.Microsecond, Reorder: 0.05},
		"slow":      {Delay: 10 * time.Millisecond, Bandwidth: 10_000_000},
	} {
		t.Run(name, func(t *testing.T) {
			prepare := func(n *verbstest.Network) { n.SetLinks(l) }
			sent, received, trace, took, err := run(t, verbstest.Options{Seed: 1}, prepare, count)
			if err != nil || sent != count || received != count {
				t.Errorf("sent %d messages, received %d: %v", sent, received, err)
			}
			if retried := strings.Contains(trace, "dropped: loss"); retried != (l.Loss > 0) {
				t.Errorf("dropped: %v", retried)
			}
			t.Logf("%d packets took %v", strings.Count(trace, "\n"), took)
		})
	}
}

func TestDevicesLoseAnAck(t *testing.T) {
	lost := verbstest.Nth(3, func(p *verbstest.Packet) bool { return p.Kind == verbstest.Ack }, verbstest.Drop)
	sent, received, trace, took, err := run(t, verbstest.Options{Filter: lost}, func(*verbstest.Network) {}, 10)
	if err != nil || sent != 10 || received != 10 || strings.Count(trace, "dropped: filter") != 1 {
		t.Errorf("sent %d, received %d, %v\n%s", sent, received, err, trace)
	}
	if took < time.Millisecond {
		t.Errorf("%v is too short for a timeout\n%s", took, trace)
	}
}

func TestDevicesSeeAPeerDie(t *testing.T) {
	die := func(n *verbstest.Network) {
		sends := 0
		n.SetFilter(func(p *verbstest.Packet) verbstest.Action {
			if p.Kind == verbstest.Send && p.Last {
				if sends++; sends == 5 {
					n.Remove(p.Dst.Addr())
				}
			}
			return verbstest.Pass
		})
	}
	synctest.Test(t, func(t *testing.T) {
		n := verbstest.NewNetwork(verbstest.Options{})
		a, b := verbstest.NewHost(t, n, "10.0.0.1"), verbstest.NewHost(t, n, "10.0.0.2")
		die(n)
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		serve(t, ctx, b, 100)
		sent, err := transfer(t, ctx, a, 100, 10)
		if sent != 4 || err == nil || !strings.Contains(err.Error(), "transport retries exceeded") {
			t.Errorf("sent %d: %v\n%s", sent, err, n.Trace())
		}
	})
}

// TestDevicesSameSeedSameTrace also makes the random numbers of devices the same: PSNs and keys.
func TestDevicesSameSeedSameTrace(t *testing.T) {
	o := verbstest.Options{Seed: 7, Link: verbstest.Link{Loss: 0.02, Duplicate: 0.02, Corrupt: 0.01, Reorder: 0.02}}
	var traces []string
	for range 5 {
		cryptotest.SetGlobalRandom(t, 1)
		_, _, trace, _, err := run(t, o, func(*verbstest.Network) {}, 50)
		if err != nil {
			t.Fatal(err)
		}
		traces = append(traces, trace)
	}
	for _, trace := range traces[1:] {
		if trace != traces[0] {
			t.Fatalf("different traces:\n%s\n%s", traces[0], trace)
		}
	}
}
