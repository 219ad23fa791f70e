// Command native measures the cost of the verbs of the data path in user space.
// Its counterparts, c/native.c on libibverbs and cgo/main.go on a cgo wrapper of
// libibverbs, take the same arguments, do the same and print the same.
//
//	native [-single] ADDR PORT ROUNDS
//
// A client and a server in the program are connected. In each round
//
//	server   posts receives                                           timed
//	client   posts SENDs, without ringing the doorbell                timed
//	         rings once: the kernel does all the work
//	         polls its completions
//	server   polls its completions                                    timed
//	         polls an empty CQ                                        timed
//
// Batches are of 1 and 16, for sends also of 64, in turns. Figures are medians over
// the rounds, in ns per request, per completion or, of an empty CQ, per call. With
// -single the queues have no locks (SingleThreaded), which neither counterpart
// offers: libibverbs supports it for other drivers only.
package main

import (
	"context"
	"errors"
	"fmt"
	"log"
	"net"
	"os"
	"runtime/debug"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/cm"
	"github.com/goverbs/verbs/internal/tsc"
)

const (
	work  = 960  // requests posted in a round while the clock runs; one more follows
	depth = 1024 // of the queues
	size  = 64   // bytes of a message
	most  = 64   // the largest batch
)

func main() {
	log.SetFlags(0)
	if err := run(os.Args[1:]); err != nil {
		log.Fatal("native: ", err)
	}
}

func run(args []string) error {
	single := len(args) > 0 && args[0] == "-single"
	if single {
		args = args[1:]
	}
	if len(args) != 3 {
		return errors.New("usage: native [-single] ADDR PORT ROUNDS")
	}
	rounds, err := strconv.Atoi(args[2])
	if err != nil {
		return err
	}
	b, err := connect(net.JoinHostPort(args[0], args[1]), single)
	if err != nil {
		return err
	}
	defer b.close()
	debug.SetGCPercent(-1)
	start, ticks := time.Now(), tsc.Read()
	for i := range rounds {
		if err := b.round(i); err != nil {
			return fmt.Errorf("round %d: %w", i, err)
		}
	}
	perTick := float64(time.Since(start).Nanoseconds()) / float64(tsc.Read()-ticks)
	fmt.Printf("sends %d\nreceives %d\n", b.sends, b.receives)
	for _, s := range slices.Concat(b.recv[:], b.send[:], b.poll[:], []*series{b.empty}) {
		if len(s.ticks) == 0 {
			return fmt.Errorf("no figures of %s", s.name)
		}
		slices.Sort(s.ticks)
		fmt.Printf("%s_%d %.3f\n", s.name, s.batch, s.ticks[len(s.ticks)/2]*perTick)
	}
	i := 0
	allocs := testing.AllocsPerRun(6, func() {
		if err = errors.Join(err, b.round(i)); err == nil {
			i++
		}
	})
	fmt.Printf("allocs %g\n", allocs)
	return err
}

// bench holds both ends of the connection, and the measurements.
type bench struct {
	client, server   *cm.Endpoint
	sendWRs          [most]verbs.SendWR
	recvWRs          [most]verbs.RecvWR
	wcs              [16]verbs.WC
	sends, receives  int // completed ones
	recv, send, poll []*series
	empty            *series
}

// series holds the times of one kind of call, a figure for each round.
type series struct {
	name  string
	batch int
	ticks []float64 // for each request
}

func newSeries(name string, batches ...int) (list []*series) {
	for _, n := range batches {
		list = append(list, &series{name, n, make([]float64, 0, 4096)})
	}
	return list
}

func connect(addr string, single bool) (*bench, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	opt := cm.Options{Polled: true, SingleThreaded: single, Cap: verbs.QPCap{MaxSendWR: depth, MaxRecvWR: depth, MaxSendSGE: 1, MaxRecvSGE: 1, MaxInline: -1}}
	l, err := cm.Listen(ctx, addr)
	if err != nil {
		return nil, err
	}
	defer l.Close()
	b := &bench{
		recv: newSeries("post_recv", 1, 16), send: newSeries("post_send", 1, 16, 64),
		poll: newSeries("poll", 1, 16), empty: newSeries("poll_empty", 1)[0],
	}
	accepted := make(chan error, 1)
	go func() {
		r, err := l.Accept(ctx)
		if err == nil {
			b.server, err = r.Accept(ctx, opt)
		}
		accepted <- err
	}()
	d := cm.Dialer{Options: opt}
	b.client, err = d.Dial(ctx, addr)
	if err := errors.Join(err, <-accepted); err != nil {
		return nil, err
	}
	from, err := b.client.AllocMR(size, verbs.AccessLocalWrite)
	if err != nil {
		return nil, err
	}
	to, err := b.server.AllocMR(size, verbs.AccessLocalWrite)
	if err != nil {
		return nil, err
	}
	for i := range b.sendWRs {
		b.sendWRs[i] = verbs.SendWR{ID: uint64(i), Opcode: verbs.OpSend, Flags: verbs.SendSignaled, SGL: []verbs.SGE{from.SGE(0, size)}}
		b.recvWRs[i] = verbs.RecvWR{ID: uint64(i), SGL: []verbs.SGE{to.SGE(0, size)}}
	}
	// On siw, even queues without locks use locks until a message has arrived.
	return b, errors.Join(b.greet(b.client, b.server), b.greet(b.server, b.client))
}

// greet sends an empty message.
func (b *bench) greet(from, to *cm.Endpoint) error {
	if _, err := to.QP.PostRecv(verbs.RecvWR{}); err != nil {
		return err
	}
	if _, err := from.QP.PostSend(verbs.SendWR{Opcode: verbs.OpSend, Flags: verbs.SendSignaled}); err != nil {
		return err
	}
	_, err := drain(from.SendCQ, b.wcs[:], 1)
	_, rerr := drain(to.RecvCQ, b.wcs[:], 1)
	return errors.Join(err, rerr)
}

func (b *bench) close() {
	b.client.Close()
	b.server.Close()
}
