// Command native measures the cost of the verbs of the data path in user space.
// Its counterpart, c/native.c on libibverbs, takes the same arguments, does the same and
// prints the same. With the tag bench_cgo the program calls libibverbs through cgo, as Go
// programs do today: each verb is one call, on requests that are in C memory.
//
//	native ADDR PORT ROUNDS
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
// Batches are of 1 and 16, in turns. Figures are medians over the rounds, in ns per request,
// per completion or, of an empty CQ, per call.
package main

import (
	"errors"
	"fmt"
	"log"
	"os"
	"runtime/debug"
	"strconv"
	"time"

	"github.com/goverbs/verbs/lab/tsc"
	"github.com/goverbs/verbs/tests/bench/ticks"
)

const (
	work  = 960  // requests posted in a round while the clock runs; one more follows
	depth = 1024 // of the queues
	size  = 64   // bytes of a message
	most  = 16   // the largest batch
)

func main() {
	log.SetFlags(0)
	if err := run(os.Args[1:]); err != nil {
		log.Fatal("native: ", err)
	}
}

func run(args []string) error {
	if len(args) != 3 {
		return errors.New("usage: native ADDR PORT ROUNDS")
	}
	rounds, err := strconv.Atoi(args[2])
	if err != nil {
		return err
	}
	p, err := connect(args[0], args[1])
	if err != nil {
		return err
	}
	debug.SetGCPercent(-1)
	b := &bench{connection: p, ticks: ticks.Meter{Work: work}}
	allocs, err := b.ticks.Measure(rounds, b.round)
	if err != nil {
		return err
	}
	fmt.Printf("sends %d\nreceives %d\nallocs %d\n", b.sends, b.receives, allocs)
	err = b.ticks.Print(os.Stdout, 7)
	fmt.Println()
	return err
}

// bench holds both ends of the connection, and the measurements.
type bench struct {
	*connection
	sends, receives int // completed ones
	ticks           ticks.Meter
}

// round runs round i, which determines the sizes of the batches.
func (b *bench) round(i int) error {
	batches := [2]int{1, most}
	if err := b.timed("post_recv", batches[i%2], b.batchRecvs, b.postRecvs); err != nil {
		return err
	}
	mute()
	if err := b.timed("post_send", batches[i%2], b.batchSends, b.postSends); err != nil {
		return err
	}
	if err := unmute(); err != nil {
		return err
	}
	n, err := b.drain(b.pollSend, work+1)
	if err != nil {
		return fmt.Errorf("sends: %w", err)
	}
	b.sends += n
	// Only polling shows whether all receives have completed: if they have not,
	// the round does not count for poll.
	time.Sleep(3 * time.Millisecond)
	n = b.timePolls(batches[i/2%2])
	rest, err := b.drain(b.pollRecv, work+1-n)
	if err != nil {
		return fmt.Errorf("receives: %w", err)
	}
	n += rest
	start := tsc.Read()
	n += b.pollEmpty()
	b.ticks.Add("poll_empty", 1, start)
	b.receives += n
	if n > work+1 {
		return errors.New("more completions than requests")
	}
	return nil
}

// timed posts requests in batches, and one more.
func (b *bench) timed(name string, size int, batch func(int), post func(n int) error) error {
	batch(size)
	start := tsc.Read()
	err := post(work / size)
	b.ticks.Add(name, size, start)
	if err != nil {
		return err
	}
	batch(1)
	return post(1)
}

// timePolls polls completions, and returns how many.
func (b *bench) timePolls(size int) (n int) {
	start := tsc.Read()
	if n = b.pollRecvs(size); n == work {
		b.ticks.Add("poll", size, start)
	}
	return n
}

// drain waits for n completions, all successful, and returns how many it polled.
func (b *bench) drain(poll func(most int) int, n int) (all int, err error) {
	for deadline := time.Now().Add(10 * time.Second); n > 0; {
		got := poll(min(n, most))
		if err := b.check(got); err != nil {
			return all, err
		}
		n -= got
		all += got
		if got == 0 {
			if time.Now().After(deadline) {
				return all, fmt.Errorf("%d are missing", n)
			}
			time.Sleep(time.Millisecond)
		}
	}
	return all, nil
}
