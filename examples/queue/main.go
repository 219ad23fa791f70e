// Command queue distributes numbered tasks to workers, which take the next number from the
// server's memory by an atomic fetch-and-add, and write their results into its memory: the
// server's program takes no part. The tasks here are to count the primes of a range.
//
//	queue serve 10.9.0.1:7000 TASKS WORKERS     # waits for the workers, and prints the sum
//	queue work 10.9.0.1:7000
//
// It needs a device with atomics, such as rxe.
package main

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"log"
	"os"
	"strconv"

	"github.com/goverbs/verbs/rconn"
	_ "github.com/goverbs/verbs/soft" // VERBS_SOFT makes a device in user space
)

// The server's memory: the number of the next task, and then the result of each, as 64-bit
// numbers. That of atomics is in the machine's byte order, the others are big endian.
const (
	next    = 0
	results = 8
)

const taskSize = 1000 // numbers of a task

func main() {
	log.SetFlags(0)
	ctx := context.Background()
	err := errors.New("usage: queue serve ADDR TASKS WORKERS | queue work ADDR")
	switch args := os.Args[1:]; {
	case len(args) == 4 && args[0] == "serve":
		tasks, err1 := strconv.ParseUint(args[2], 10, 16)
		workers, err2 := strconv.ParseUint(args[3], 10, 16)
		if err = errors.Join(err1, err2); err == nil {
			err = serve(ctx, args[1], int(tasks), int(workers))
		}
	case len(args) == 2 && args[0] == "work":
		err = work(ctx, args[1])
	}
	if err != nil {
		log.Fatal(err)
	}
}

func serve(ctx context.Context, addr string, tasks, workers int) error {
	l, err := rconn.Listen(ctx, addr)
	if err != nil {
		return err
	}
	defer l.Close()
	fmt.Println("listening on", l.Addr())
	memory := make([]byte, results+8*tasks)
	gone := make(chan error, workers)
	for range workers {
		req, err := l.Accept(ctx)
		if err != nil {
			return err
		}
		go func() { gone <- serveWorker(ctx, req, memory) }()
	}
	for range workers {
		if err := <-gone; err != nil {
			return err
		}
	}
	sum := uint64(0)
	for i := range tasks {
		sum += binary.BigEndian.Uint64(memory[results+8*i:])
	}
	fmt.Println(sum)
	return nil
}

// serveWorker lets a worker use the memory, and waits until it has gone.
func serveWorker(ctx context.Context, req *rconn.Request, memory []byte) error {
	c, err := req.Accept(ctx, rconn.Options{Setup: func(c *rconn.Conn) error {
		region, err := c.Register(memory, rconn.RemoteAtomic|rconn.RemoteWrite)
		if err != nil {
			return err
		}
		return c.Announce(0, region.All())
	}})
	if err != nil {
		return err
	}
	defer c.Close()
	return c.AwaitDisconnect(ctx)
}

func work(ctx context.Context, addr string) error {
	c, err := rconn.Dial(ctx, addr)
	if err != nil {
		return err
	}
	defer c.Close()
	if len(c.Adverts()) != 1 || c.Adverts()[0].Len < results {
		return fmt.Errorf("%s is no queue", addr)
	}
	memory := c.Adverts()[0]
	tasks := uint64(memory.Len-results) / 8
	done := 0
	for {
		task, err := c.Counter(memory.At(next)).Add(ctx, 1)
		if err != nil {
			return err
		}
		if task >= tasks {
			fmt.Println("did", done, "tasks")
			return nil
		}
		result := binary.BigEndian.AppendUint64(nil, primes(task*taskSize, (task+1)*taskSize))
		if err := c.Put(ctx, memory.At(results+8*int(task)), result); err != nil {
			return err
		}
		done++
	}
}

// primes returns how many primes there are in from..to-1.
func primes(from, to uint64) (count uint64) {
	for n := max(from, 2); n < to; n++ {
		prime := true
		for d := uint64(2); prime && d*d <= n; d++ {
			prime = n%d != 0
		}
		if prime {
			count++
		}
	}
	return count
}
