//go:build linux

package uverbs_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"net/netip"
	"time"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/mmap"
	"github.com/goverbs/verbs/uverbs"
)

// This example connects two queue pairs of one process. The other examples use objects
// like those that it makes.
func Example() {
	check := func(err error) {
		if err != nil {
			log.Fatal(err)
		}
	}
	dev, err := uverbs.Open("") // the first device
	check(err)
	defer dev.Close()
	pd, err := dev.AllocPD()
	check(err)
	defer pd.Close()
	cq, err := dev.CreateCQ(uverbs.CQOptions{Depth: 16})
	check(err)
	defer cq.Close()
	mr, err := pd.AllocMR(4096, verbs.AccessLocalWrite, uverbs.MROptions{})
	check(err)
	defer mr.Close()
	var qps [2]*uverbs.QP
	var ends [2]verbs.QPAddr // which the sides must exchange
	for i := range qps {
		qps[i], err = pd.CreateQP(uverbs.QPOptions{
			Type: verbs.RC, SendCQ: cq, RecvCQ: cq,
			Cap: verbs.QPCap{MaxSendWR: 4, MaxRecvWR: 4, MaxSendSGE: 1, MaxRecvSGE: 1, MaxInline: 64},
		})
		check(err)
		defer qps[i].Close()
		ends[i], err = qps[i].Addr(1)
		check(err)
	}
	check(qps[0].Connect(ends[0], ends[1], uverbs.ConnectOptions{}))
	check(qps[1].Connect(ends[1], ends[0], uverbs.ConnectOptions{}))

	_, err = qps[1].PostRecv(verbs.RecvWR{SGL: []verbs.SGE{mr.SGE(0, mr.Len())}})
	check(err)
	_, err = qps[0].PostSend(verbs.SendWR{Opcode: verbs.OpSend, Inline: []byte("hello")})
	check(err)
	var wcs [1]verbs.WC
	for cq.Poll(wcs[:]) == 0 {
	}
	check(wcs[0].Err())
	fmt.Printf("%s\n", mr.Bytes()[:wcs[0].ByteLen])
	// Output: hello
}

// Objects that the other examples use, on a device in user space in this process, or the lab's
// rxe0.
var (
	ctx = context.Background()
	dev *uverbs.Context
	pd  *uverbs.PD
	cq  *uverbs.CQ // of all queue pairs, with a CompChannel
	mr  *uverbs.MR // the memory of this side
	qp  *uverbs.QP // connected to peer

	peer     *uverbs.QP
	peerAddr uint64 // address of the peer's memory, which the peer sent
	peerRKey uint32
)

// use makes these objects, and returns a function that closes them.
func use() (release func()) {
	must := func(err error) {
		if err != nil {
			log.Fatal(err)
		}
	}
	var err error
	dev, err = uverbs.Open("rxe0")
	must(err)
	pd, err = dev.AllocPD()
	must(err)
	ch, err := dev.CreateCompChannel()
	must(err)
	cq, err = dev.CreateCQ(uverbs.CQOptions{Depth: 64, Channel: ch})
	must(err)
	mr, err = pd.AllocMR(4096, verbs.AccessLocalWrite|verbs.AccessMWBind, uverbs.MROptions{})
	must(err)
	theirs, err := pd.AllocMR(4096, verbs.AccessAll, uverbs.MROptions{})
	must(err)
	qp, err = pd.CreateQP(uverbs.QPOptions{SendCQ: cq, RecvCQ: cq})
	must(err)
	peer, err = pd.CreateQP(uverbs.QPOptions{SendCQ: cq, RecvCQ: cq})
	must(err)
	here, err := qp.Addr(1)
	must(err)
	there, err := peer.Addr(1)
	must(err)
	must(qp.Connect(here, there, uverbs.ConnectOptions{Access: verbs.AccessAll}))
	must(peer.Connect(there, here, uverbs.ConnectOptions{Access: verbs.AccessAll}))
	peerAddr, peerRKey = theirs.Addr(), theirs.RKey()
	return func() {
		for _, o := range []io.Closer{qp, peer, mr, theirs, cq, ch, pd, dev} {
			must(o.Close())
		}
	}
}

func ExampleDevices() {
	devices, err := uverbs.Devices()
	if err != nil {
		log.Fatal(err)
	}
	for _, d := range devices {
		if d.Name == "rxe0" {
			fmt.Println(d.Name, d.IWARP())
		}
	}
	// Output: rxe0 false
}

func ExampleOpen() {
	dev, err := uverbs.Open("rxe0")
	if err != nil {
		log.Fatal(err) // the error lists the devices
	}
	defer dev.Close()
	table, err := dev.GIDTable()
	if err != nil {
		log.Fatal(err)
	}
	for _, g := range table {
		if g.GID.Addr().Is4() {
			fmt.Println(g.Type)
		}
	}
	// Output: RoCE v2
}

func ExampleContext_Probe() {
	defer use()()
	if err := dev.Probe(uverbs.FeatureUD); errors.Is(err, errors.ErrUnsupported) {
		fmt.Println("no datagrams:", err)
	} else if err == nil {
		fmt.Println("datagrams")
	}
	// Output: datagrams
}

// Any memory without Go pointers can be registered, also a slice of the Go heap. This is outside
// of it.
func ExamplePD_RegisterMR() {
	defer use()()
	buf, err := mmap.NewBuffer(1<<16, mmap.BufferOptions{})
	if err != nil {
		log.Fatal(err)
	}
	defer buf.Close()
	mr, err := pd.RegisterMR(buf.Bytes(), verbs.AccessLocalWrite|verbs.AccessRemoteWrite, uverbs.MROptions{})
	if err != nil {
		log.Fatal(err)
	}
	defer mr.Close()
	fmt.Println(mr.Len(), "bytes")
	// Output: 65536 bytes
}

// Blocks of an arena are where requests read and peers write. A program that gets none returns those
// whose requests have completed, as it must.
func ExampleArena() {
	defer use()()
	arena, err := pd.AllocArena(1<<20, verbs.AccessLocalWrite, uverbs.ArenaOptions{})
	if err != nil {
		log.Fatal(err)
	}
	defer arena.Close()
	block, err := arena.Get(ctx, 256)
	if err != nil {
		log.Fatal(err)
	}
	defer block.Put()
	n := copy(block.Bytes(), "hello")
	_, err = qp.PostSend(verbs.SendWR{
		Opcode: verbs.OpRDMAWrite, Flags: verbs.SendSignaled, SGL: []verbs.SGE{block.SGE(pd, 0, n)},
		RemoteAddr: peerAddr, RKey: peerRKey,
	})
	if err != nil {
		log.Fatal(err)
	}
	wc, err := cq.Next(ctx) // until then the request uses the block
	fmt.Println(wc.Status, err, arena.Stats().InUse, "bytes in use")
	// Output: work completion: success <nil> 256 bytes in use
}

// This example makes the steps of Connect one by one, for attributes that it has no option for.
// The queue pair is its own peer.
func ExampleQP_Modify() {
	defer use()()
	qp, err := pd.CreateQP(uverbs.QPOptions{SendCQ: cq, RecvCQ: cq})
	if err != nil {
		log.Fatal(err)
	}
	defer qp.Close()
	peer, err := qp.Addr(1)
	if err != nil {
		log.Fatal(err)
	}
	for _, step := range []struct {
		attr verbs.QPAttr
		mask verbs.QPAttrMask
	}{{
		verbs.QPAttr{State: verbs.StateInit, Port: 1, Access: verbs.AccessRemoteWrite},
		verbs.MaskState | verbs.MaskPKeyIndex | verbs.MaskPort | verbs.MaskAccess,
	}, {
		verbs.QPAttr{
			State: verbs.StateRTR, AV: peer.PathFrom(peer), PathMTU: verbs.MTU1024, DestQPNum: peer.QPNum, RQPSN: peer.PSN,
			MaxDestRDAtomic: 1, MinRNRTimer: 12,
		},
		verbs.MaskState | verbs.MaskAV | verbs.MaskPathMTU | verbs.MaskDestQPNum | verbs.MaskRQPSN |
			verbs.MaskMaxDestRDAtomic | verbs.MaskMinRNRTimer,
	}, {
		verbs.QPAttr{State: verbs.StateRTS, SQPSN: peer.PSN, Timeout: 14, RetryCount: 7, RNRRetry: 7, MaxRDAtomic: 1},
		verbs.MaskState | verbs.MaskSQPSN | verbs.MaskTimeout | verbs.MaskRetryCount | verbs.MaskRNRRetry | verbs.MaskMaxRDAtomic,
	}} {
		if err := qp.Modify(step.attr, step.mask); err != nil {
			log.Fatal(err)
		}
	}
	attr, err := qp.Query()
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(attr.State, attr.DestQPNum == qp.Num())
	// Output: RTS true
}

func ExampleQP_PostSend() {
	defer use()()
	n := copy(mr.Bytes(), "in two requests, with one system call")
	requests := []verbs.SendWR{{
		Opcode: verbs.OpRDMAWrite, RemoteAddr: peerAddr, RKey: peerRKey,
		SGL: []verbs.SGE{mr.SGE(0, n)},
	}, {
		// Only the last is signaled: there is one completion for both.
		Opcode: verbs.OpRDMARead, RemoteAddr: peerAddr, RKey: peerRKey, Flags: verbs.SendSignaled,
		SGL: []verbs.SGE{mr.SGE(1024, n)},
	}}
	if _, err := qp.PostSend(requests...); err != nil {
		log.Fatal(err)
	}
	if _, err := cq.Next(ctx); err != nil {
		log.Fatal(err)
	}
	fmt.Printf("%s\n", mr.Bytes()[1024:][:n])
	// Output: in two requests, with one system call
}

func ExampleQP_PostSend_atomic() {
	defer use()()
	// The peer's memory starts with a counter. The request returns its old value.
	add := verbs.SendWR{
		Opcode: verbs.OpFetchAdd, Args: &verbs.SendArgs{CompareAdd: 1}, RemoteAddr: peerAddr, RKey: peerRKey,
		Flags: verbs.SendSignaled, SGL: []verbs.SGE{mr.SGE(0, 8)},
	}
	for range 3 {
		if _, err := qp.PostSend(add); err != nil {
			log.Fatal(err)
		}
		if _, err := cq.Next(ctx); err != nil {
			log.Fatal(err)
		}
		fmt.Println(mr.Word64(0).Load())
	}
	// Output:
	// 0
	// 1
	// 2
}

func ExampleQP_BindMW() {
	defer use()()
	// The window covers 512 bytes of mr, which was made with AccessMWBind.
	window, err := pd.AllocMW(verbs.MWType2)
	if err != nil {
		log.Fatal(err)
	}
	defer window.Close()
	key, err := qp.BindMW(window, uverbs.BindOptions{
		Flags: verbs.SendSignaled, MR: mr, Offset: 1024, Length: 512, Access: verbs.AccessRemoteWrite,
	})
	if err != nil {
		log.Fatal(err)
	}
	if _, err := cq.Next(ctx); err != nil {
		log.Fatal(err)
	}
	fmt.Println("the peer may write with the window's key:", key == window.RKey())

	// Revoke the key.
	revoke := verbs.SendWR{Opcode: verbs.OpLocalInv, RKey: key, Flags: verbs.SendSignaled}
	if _, err := qp.PostSend(revoke); err != nil {
		log.Fatal(err)
	}
	if _, err := cq.Next(ctx); err != nil {
		log.Fatal(err)
	}
	fmt.Println("it may no more")
	// Output:
	// the peer may write with the window's key: true
	// it may no more
}

func ExamplePD_CreateSRQ() {
	defer use()()
	// An SRQ has receives for any number of queue pairs.
	srq, err := pd.CreateSRQ(uverbs.SRQOptions{MaxWR: 128, MaxSGE: 1})
	if err != nil {
		log.Fatal(err)
	}
	defer srq.Close()
	for i := range 16 {
		if _, err := srq.PostRecv(verbs.RecvWR{ID: uint64(i), SGL: []verbs.SGE{mr.SGE(64*i, 64)}}); err != nil {
			log.Fatal(err)
		}
	}
	for range 3 {
		qp, err := pd.CreateQP(uverbs.QPOptions{
			SendCQ: cq, RecvCQ: cq, SRQ: srq,
			Cap: verbs.QPCap{MaxSendWR: 4, MaxSendSGE: 1},
		})
		if err != nil {
			log.Fatal(err)
		}
		defer qp.Close()
	}
	fmt.Println("16 receives for 3 queue pairs")
	// Output: 16 receives for 3 queue pairs
}

// This example writes to a target by the dynamically connected transport of ConnectX.
func ExampleQP_StartDC() {
	defer use()()
	const key = 0xffeeddcc
	check := func(err error) {
		if err != nil {
			log.Fatal(err)
		}
	}
	gid, err := dev.FindGID(1, netip.Addr{})
	check(err)
	srq, err := pd.CreateSRQ(uverbs.SRQOptions{MaxWR: 16, MaxSGE: 1})
	check(err)
	defer srq.Close()
	dct, err := pd.CreateQP(uverbs.QPOptions{Type: verbs.DCT, RecvCQ: cq, SRQ: srq, DCKey: key})
	check(err)
	defer dct.Close()
	check(dct.StartDC(gid, uverbs.ConnectOptions{Access: verbs.AccessRemoteWrite}))
	target, err := dct.Addr(gid.Port) // for the programs that send to it
	check(err)

	// An initiator sends to any number of targets.
	dci, err := pd.CreateQP(uverbs.QPOptions{Type: verbs.DCI, SendCQ: cq, DCKey: key})
	check(err)
	defer dci.Close()
	check(dci.StartDC(gid, uverbs.ConnectOptions{}))
	local, err := dci.AddrOn(gid)
	check(err)
	ah, err := pd.CreateAH(target.PathFrom(local))
	check(err)
	defer ah.Close()
	_, err = dci.PostSend(verbs.SendWR{
		Opcode: verbs.OpRDMAWrite, Flags: verbs.SendSignaled, SGL: []verbs.SGE{mr.SGE(0, 64)},
		RemoteAddr: mr.Addr() + 128, RKey: mr.RKey(), To: ah.To(target.QPNum, 0),
	})
	check(err)
	var wcs [1]verbs.WC
	_, err = cq.PollWait(ctx, wcs[:])
	check(err)
	check(wcs[0].Err())
}

// This example sends a datagram and an answer.
func ExamplePD_CreateReplyAH() {
	defer use()()
	const port, qkey = 1, 0x1ee7
	check := func(err error) {
		if err != nil {
			log.Fatal(err)
		}
	}
	sends, err := dev.CreateCQ(uverbs.CQOptions{Depth: 2})
	check(err)
	defer sends.Close()
	var client, server *uverbs.QP
	for i, qp := range []**uverbs.QP{&client, &server} {
		*qp, err = pd.CreateQP(uverbs.QPOptions{
			Type: verbs.UD, SendCQ: sends, RecvCQ: cq, SignalAll: true,
			Cap: verbs.QPCap{MaxSendWR: 1, MaxRecvWR: 1, MaxSendSGE: 1, MaxRecvSGE: 1, MaxInline: 64},
		})
		check(err)
		defer (*qp).Close()
		check((*qp).StartUD(port, qkey))
		_, err = (*qp).PostRecv(verbs.RecvWR{SGL: []verbs.SGE{mr.SGE(1024*i, 256)}})
		check(err)
	}

	// The client knows the server's GID and the number of its queue pair.
	end, err := server.Addr(port)
	check(err)
	ah, err := pd.CreateAH(end.PathFrom(end))
	check(err)
	defer ah.Close()
	_, err = client.PostSend(verbs.SendWR{Opcode: verbs.OpSend, Inline: []byte("who is there?"), To: ah.To(end.QPNum, qkey)})
	check(err)

	// The server answers the sender.
	var wcs [1]verbs.WC
	_, err = cq.PollWait(ctx, wcs[:])
	check(err)
	datagram := mr.Bytes()[1024:][:wcs[0].ByteLen]
	fmt.Printf("%s\n", datagram[verbs.GRHSize:])
	reply, err := pd.CreateReplyAH(port, &wcs[0], datagram[:verbs.GRHSize])
	check(err)
	defer reply.Close()
	_, err = server.PostSend(verbs.SendWR{Opcode: verbs.OpSend, Inline: []byte("me"), To: reply.To(wcs[0].SrcQP, qkey)})
	check(err)
	_, err = cq.PollWait(ctx, wcs[:])
	check(err)
	fmt.Printf("%s\n", mr.Bytes()[verbs.GRHSize:wcs[0].ByteLen])

	// The handles may be closed when the sends have completed.
	for n := 0; n < 2; {
		n += sends.Poll(wcs[:])
	}
	// Output:
	// who is there?
	// me
}

func ExampleCQ_PollWait() {
	defer use()()
	if _, err := qp.PostRecv(verbs.RecvWR{SGL: []verbs.SGE{mr.SGE(0, 64)}}); err != nil {
		log.Fatal(err)
	}
	// A wait that is cancelled takes no completion.
	brief, cancel := context.WithTimeout(ctx, 10*time.Millisecond)
	defer cancel()
	var wcs [16]verbs.WC
	if _, err := cq.PollWait(brief, wcs[:]); errors.Is(err, context.DeadlineExceeded) {
		fmt.Println("nothing yet")
	}
	go peer.PostSend(verbs.SendWR{Opcode: verbs.OpSend, Inline: []byte("now")})
	n, err := cq.PollWait(ctx, wcs[:])
	if err != nil {
		log.Fatal(err)
	}
	for _, wc := range wcs[:n] {
		fmt.Printf("%v, %s\n", wc.Err(), mr.Bytes()[:wc.ByteLen])
	}
	// Output:
	// nothing yet
	// <nil>, now
}

// This example does what PollWait does.
func ExampleCQ_Arm() {
	defer use()()
	if _, err := qp.PostRecv(verbs.RecvWR{SGL: []verbs.SGE{mr.SGE(0, 64)}}); err != nil {
		log.Fatal(err)
	}
	go peer.PostSend(verbs.SendWR{Opcode: verbs.OpSend, Inline: []byte("awake")})
	var wcs [16]verbs.WC
	n := 0
	for n == 0 {
		if err := cq.Arm(false); err != nil {
			log.Fatal(err)
		}
		// Completions from before have no event.
		if n = cq.Poll(wcs[:]); n == 0 {
			if err := cq.Wait(ctx); err != nil {
				log.Fatal(err)
			}
			n = cq.Poll(wcs[:])
		}
	}
	fmt.Printf("%s\n", mr.Bytes()[:wcs[0].ByteLen])
	// Output: awake
}

func ExampleContext_AsyncEvents() {
	defer use()()
	ctx, cancel := context.WithTimeout(ctx, 10*time.Millisecond)
	defer cancel()
	for event, err := range dev.AsyncEvents(ctx) {
		if err != nil {
			fmt.Println(errors.Is(err, context.DeadlineExceeded))
			break
		}
		switch event.Type {
		case verbs.EventQPFatal, verbs.EventQPAccessErr:
			log.Println(event.Type)
		case verbs.EventDeviceFatal:
			log.Fatal(event.Type)
		}
	}
	// Output: true
}
