//go:build bench_cgo

package main

/*
#cgo CFLAGS: -O2 -I${SRCDIR}/../c
#cgo LDFLAGS: -lrdmacm -libverbs -Wl,--export-dynamic
#include "pair.h"

struct conn client, server;
struct ibv_send_wr *bad_send;
struct ibv_recv_wr *bad_recv;

static void set_mute(void) { mute = 1; }
*/
import "C"

import (
	"errors"
	"syscall"
)

type connection struct{}

func connect(addr, port string) (*connection, error) {
	C.connect_pair(C.CString(addr), C.CString(port), &C.client, &C.server)
	return new(connection), nil
}

func mute() { C.set_mute() }

func unmute() error {
	C.unmute()
	return nil
}

func (*connection) batchSends(n int) { C.batch(&C.client, C.int(n)) }
func (*connection) batchRecvs(n int) { C.batch(&C.server, C.int(n)) }

func (*connection) postSends(n int) error {
	wr := &C.client.send[0] // in the call itself cgo would copy the array, to check it
	for range n {
		if ret := C.ibv_post_send(C.client.id.qp, wr, &C.bad_send); ret != 0 {
			return syscall.Errno(ret)
		}
	}
	return nil
}

func (*connection) postRecvs(n int) error {
	wr := &C.server.recv[0]
	for range n {
		if ret := C.ibv_post_recv(C.server.id.qp, wr, &C.bad_recv); ret != 0 {
			return syscall.Errno(ret)
		}
	}
	return nil
}

func (*connection) pollSend(n int) int {
	wc := &C.client.wc[0]
	return int(C.ibv_poll_cq(C.client.send_cq, C.int(n), wc))
}

func (*connection) pollRecv(n int) int {
	wc := &C.client.wc[0]
	return int(C.ibv_poll_cq(C.server.recv_cq, C.int(n), wc))
}

func (p *connection) pollRecvs(batch int) (n int) {
	for n < work {
		got := p.pollRecv(batch)
		n += got
		if got < batch {
			return n
		}
	}
	return n
}

func (p *connection) pollEmpty() (n int) {
	for range work {
		n += p.pollRecv(1)
	}
	return n
}

func (*connection) check(n int) error {
	for i := range n {
		if wc := &C.client.wc[i]; wc.status != C.IBV_WC_SUCCESS {
			return errors.New(C.GoString(C.ibv_wc_status_str(wc.status)))
		}
	}
	return nil
}
