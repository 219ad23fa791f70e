// Command cgo is native/main.go on a wrapper of libibverbs as Go programs use it
// today: each verb is one call through cgo, on requests that are in C memory. It is
// a module of its own, so that no part of verbs needs cgo.
package main

/*
#cgo CFLAGS: -O2 -I${SRCDIR}/../c
#cgo LDFLAGS: -lrdmacm -libverbs -Wl,--export-dynamic
#include "pair.h"

struct end client, server;
struct ibv_send_wr *bad_send;
struct ibv_recv_wr *bad_recv;

static void set_mute(void) { mute = 1; }
*/
import "C"

import (
	"errors"
	"fmt"
	"log"
	"os"
	"runtime/debug"
	"slices"
	"strconv"
	"syscall"
	"time"
)

const work = C.WORK

func main() {
	log.SetFlags(0)
	if err := run(os.Args[1:]); err != nil {
		log.Fatal("cgo: ", err)
	}
}

func run(args []string) error {
	if len(args) != 3 {
		return errors.New("usage: cgo ADDR PORT ROUNDS")
	}
	rounds, err := strconv.Atoi(args[2])
	if err != nil {
		return err
	}
	C.connect_pair(C.CString(args[0]), C.CString(args[1]), &C.client, &C.server)
	debug.SetGCPercent(-1)
	start, ticks := time.Now(), C.tsc()
	for i := range rounds {
		if err := round(i); err != nil {
			return fmt.Errorf("round %d: %w", i, err)
		}
	}
	perTick := float64(time.Since(start).Nanoseconds()) / float64(C.tsc()-ticks)
	fmt.Printf("sends %d\nreceives %d\n", sent, received)
	for _, s := range slices.Concat(recvs, sends, polls, empty) {
		if len(s.ticks) == 0 {
			return fmt.Errorf("no figures of %s", s.name)
		}
		slices.Sort(s.ticks)
		fmt.Printf("%s_%d %.3f\n", s.name, s.batch, s.ticks[len(s.ticks)/2]*perTick)
	}
	return nil
}

// The verbs, wrapped.

func postSend(wr *C.struct_ibv_send_wr) error {
	if ret := C.ibv_post_send(C.client.id.qp, wr, &C.bad_send); ret != 0 {
		return fmt.Errorf("ibv_post_send: %w", syscall.Errno(ret))
	}
	return nil
}

func postRecv(wr *C.struct_ibv_recv_wr) error {
	if ret := C.ibv_post_recv(C.server.id.qp, wr, &C.bad_recv); ret != 0 {
		return fmt.Errorf("ibv_post_recv: %w", syscall.Errno(ret))
	}
	return nil
}

func poll(cq *C.struct_ibv_cq, wcs []C.struct_ibv_wc) int {
	return int(C.ibv_poll_cq(cq, C.int(len(wcs)), &wcs[0]))
}

// series holds the times of one kind of call, a figure for each round.
type series struct {
	name  string
	batch int
	ticks []float64
}

func newSeries(name string, batches ...int) (list []*series) {
	for _, n := range batches {
		list = append(list, &series{name, n, make([]float64, 0, 4096)})
	}
	return list
}

func (s *series) add(start C.uint64_t) { s.ticks = append(s.ticks, float64(C.tsc()-start)/work) }

var (
	recvs = newSeries("post_recv", 1, 16)
	sends = newSeries("post_send", 1, 16, 64)
	polls = newSeries("poll", 1, 16)
	empty = newSeries("poll_empty", 1)

	sent, received int // completions
)

func round(i int) error {
	r, s, p := recvs[i%len(recvs)], sends[i%len(sends)], polls[i/2%len(polls)]
	C.batch(&C.server, C.int(r.batch))
	start := C.tsc()
	for k := 0; k < work; k += r.batch {
		if err := postRecv(&C.server.recv[0]); err != nil {
			return err
		}
	}
	r.add(start)
	C.batch(&C.server, 1)
	if err := postRecv(&C.server.recv[0]); err != nil {
		return err
	}

	C.batch(&C.client, C.int(s.batch))
	C.set_mute()
	start = C.tsc()
	for k := 0; k < work; k += s.batch {
		if err := postSend(&C.client.send[0]); err != nil {
			return err
		}
	}
	s.add(start)
	C.batch(&C.client, 1)
	if err := postSend(&C.client.send[0]); err != nil {
		return err
	}
	C.unmute()

	n, err := drain(C.client.send_cq, work+1)
	if err != nil {
		return fmt.Errorf("sends: %w", err)
	}
	sent += n
	time.Sleep(3 * time.Millisecond)
	n = pollRecvs(p)
	rest, err := drain(C.server.recv_cq, work+1-n)
	if err != nil {
		return fmt.Errorf("receives: %w", err)
	}
	n += rest
	start = C.tsc()
	for range work {
		n += poll(C.server.recv_cq, C.server.wc[:1])
	}
	empty[0].add(start)
	received += n
	if n > work+1 {
		return errors.New("more completions than requests")
	}
	return nil
}

func pollRecvs(s *series) int {
	n, wcs := 0, C.server.wc[:s.batch]
	start := C.tsc()
	for n < work {
		got := poll(C.server.recv_cq, wcs)
		n += got
		if got < s.batch {
			return n
		}
	}
	s.add(start)
	return n
}

func drain(cq *C.struct_ibv_cq, n int) (all int, err error) {
	for deadline := time.Now().Add(10 * time.Second); n > 0; {
		wcs := C.client.wc[:min(n, 16)]
		got := poll(cq, wcs)
		for i := range wcs[:got] {
			if wcs[i].status != C.IBV_WC_SUCCESS {
				return all, errors.New(C.GoString(C.ibv_wc_status_str(wcs[i].status)))
			}
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
