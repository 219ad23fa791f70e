package hosts

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/internal/labtest"
	"github.com/goverbs/verbs/uverbs"
)

const (
	dcKey      = 0x123456789abcdef0
	dcMemory   = 1 << 20
	dcMessage  = 1 << 16
	dcReceives = 8
)

// DCTarget is what an initiator has to know of a target.
type DCTarget struct {
	Addr verbs.QPAddr
	Mem  uint64
	RKey uint32
}

// dcNode has an initiator and targets of the dynamically connected transport.
type dcNode struct {
	pd        *uverbs.PD
	gid       verbs.GIDEntry
	cq, recvs *uverbs.CQ // of the initiator, and of all targets
	local     *uverbs.MR // of the initiator
	dci       *uverbs.QP
	targets   []*dcTarget
	close     []func() error // in the reverse order
}

// dcTarget is a target with its memory, in which the slots of receives are last.
type dcTarget struct {
	srq      *uverbs.SRQ
	mr       *uverbs.MR
	dct      *uverbs.QP
	received int
	closed   sync.Once
}

func newDCNode(device string, targets int) (n *dcNode, err error) {
	n = &dcNode{}
	defer func() {
		if err != nil {
			n.Close()
		}
	}()
	ctx, err := uverbs.Open(device)
	if err != nil {
		return n, err
	}
	n.close = append(n.close, ctx.Close)
	if n.gid, err = ctx.FindGID(1, netip.Addr{}); err != nil {
		return n, err
	}
	if n.pd, err = ctx.AllocPD(); err != nil {
		return n, err
	}
	n.close = append(n.close, n.pd.Close)
	for _, q := range []**uverbs.CQ{&n.cq, &n.recvs} {
		if *q, err = ctx.CreateCQ(uverbs.CQOptions{Depth: 64}); err != nil {
			return n, err
		}
		n.close = append(n.close, (*q).Close)
	}
	if n.local, err = n.pd.AllocMR(dcMemory+dcMessage, verbs.AccessLocalWrite, uverbs.MROptions{}); err != nil {
		return n, err
	}
	n.close = append(n.close, n.local.Close)
	if n.dci, err = n.pd.CreateQP(uverbs.QPOptions{Type: verbs.DCI, SendCQ: n.cq, DCKey: dcKey}); err != nil {
		return n, err
	}
	n.close = append(n.close, n.dci.Close)
	for range targets {
		if err := n.addTarget(); err != nil {
			return n, err
		}
	}
	return n, n.start()
}

func (n *dcNode) addTarget() (err error) {
	d := &dcTarget{}
	if d.srq, err = n.pd.CreateSRQ(uverbs.SRQOptions{MaxWR: dcReceives, MaxSGE: 1}); err != nil {
		return err
	}
	n.close = append(n.close, d.srq.Close)
	if d.mr, err = n.pd.AllocMR(dcMemory+dcReceives*dcMessage, verbs.AccessAll, uverbs.MROptions{}); err != nil {
		return err
	}
	n.close = append(n.close, d.mr.Close)
	if d.dct, err = n.pd.CreateQP(uverbs.QPOptions{Type: verbs.DCT, RecvCQ: n.recvs, SRQ: d.srq, DCKey: dcKey}); err != nil {
		return err
	}
	n.close = append(n.close, d.close)
	for i := range dcReceives {
		if err := d.postRecv(i); err != nil {
			return err
		}
	}
	n.targets = append(n.targets, d)
	return d.dct.StartDC(n.gid, uverbs.ConnectOptions{Access: verbs.AccessRemoteWrite | verbs.AccessRemoteRead | verbs.AccessRemoteAtomic})
}

func (n *dcNode) start() error {
	return n.dci.StartDC(n.gid, uverbs.ConnectOptions{Timeout: 12, RetryCount: 6})
}

// restart resets the initiator after an error.
func (n *dcNode) restart() error {
	if err := n.dci.Modify(verbs.QPAttr{State: verbs.StateReset}, verbs.MaskState); err != nil {
		return err
	}
	return n.start()
}

func (n *dcNode) Close() (err error) {
	for i := len(n.close) - 1; i >= 0; i-- {
		err = errors.Join(err, n.close[i]())
	}
	return err
}

func (d *dcTarget) close() (err error) {
	d.closed.Do(func() { err = d.dct.Close() })
	return err
}

func (d *dcTarget) postRecv(i int) error {
	_, err := d.srq.PostRecv(verbs.RecvWR{ID: uint64(i), SGL: []verbs.SGE{d.mr.SGE(dcMemory+i*dcMessage, dcMessage)}})
	return err
}

// addrs returns what initiators have to know of the targets.
func (n *dcNode) addrs() (all []DCTarget, err error) {
	for _, d := range n.targets {
		a, err := d.dct.AddrOn(n.gid)
		if err != nil {
			return nil, err
		}
		all = append(all, DCTarget{a, d.mr.Addr(), d.mr.RKey()})
	}
	return all, nil
}

// post posts a request for a target.
func (n *dcNode) post(ah *uverbs.AH, to DCTarget, wr verbs.SendWR) error {
	wr.To, wr.RemoteAddr, wr.RKey, wr.Flags = ah.To(to.Addr.QPNum, 0), to.Mem+wr.RemoteAddr, to.RKey, verbs.SendSignaled
	_, err := n.dci.PostSend(wr)
	return err
}

// do posts a request for a target, and returns its completion.
func (n *dcNode) do(ah *uverbs.AH, to DCTarget, wr verbs.SendWR) (verbs.WC, error) {
	if err := n.post(ah, to, wr); err != nil {
		return verbs.WC{}, err
	}
	return next(n.cq)
}

// next returns the next completion. The CQs have no channels.
func next(cq *uverbs.CQ) (verbs.WC, error) {
	var wcs [1]verbs.WC
	for end := time.Now().Add(workTimeout); cq.Poll(wcs[:]) == 0; time.Sleep(50 * time.Microsecond) {
		if time.Now().After(end) {
			return wcs[0], errors.New("no completion")
		}
	}
	return wcs[0], nil
}

func (n *dcNode) handle(to DCTarget) (*uverbs.AH, error) {
	local, err := n.dci.AddrOn(n.gid)
	if err != nil {
		return nil, err
	}
	return n.pd.CreateAH(to.Addr.PathFrom(local))
}

// use writes to a target, reads that again, adds to it, and sends messages with immediates that
// count, in rounds.
func (n *dcNode) use(to DCTarget, rounds int) error {
	ah, err := n.handle(to)
	if err != nil {
		return err
	}
	defer ah.Close()
	r := rand.New(rand.NewPCG(1, 1))
	mem := n.local.Bytes()[:dcMemory]
	for round := range rounds {
		size := 8 + r.IntN(60000)
		for i := range size {
			mem[i] = byte(r.Uint32())
		}
		sent := bytes.Clone(mem[:size])
		sgl := []verbs.SGE{n.local.SGE(0, size)}
		for _, wr := range []verbs.SendWR{
			{Opcode: verbs.OpRDMAWrite, SGL: sgl}, {Opcode: verbs.OpRDMARead, SGL: sgl},
			{Opcode: verbs.OpFetchAdd, SGL: []verbs.SGE{n.local.SGE(0, 8)}, Args: &verbs.SendArgs{CompareAdd: 1}},
			{Opcode: verbs.OpSendImm, Imm: uint32(round), SGL: []verbs.SGE{n.local.SGE(0, min(size, dcMessage))}},
		} {
			wc, err := n.do(ah, to, wr)
			if err == nil {
				err = wc.Err()
			}
			if err != nil {
				return fmt.Errorf("round %d: %v: %w", round, wr.Opcode, err)
			}
			switch {
			case wr.Opcode == verbs.OpRDMAWrite:
				clear(mem[:size])
			case !bytes.Equal(mem[:size], sent):
				return fmt.Errorf("round %d: %v of %d bytes: the data differs", round, wr.Opcode, size)
			}
		}
		if got := binary.NativeEndian.Uint64(mem); got != binary.NativeEndian.Uint64(sent) {
			return fmt.Errorf("round %d: the value before the sum is %d", round, got)
		}
	}
	return nil
}

// receive receives the messages of use, and checks what they count.
func (n *dcNode) receive(rounds int) error {
	for round := range rounds {
		wc, err := next(n.recvs)
		if err != nil {
			return err
		}
		if wc.Err() != nil || wc.Imm() != uint32(round) || wc.QPNum != n.targets[0].dct.Num() {
			return fmt.Errorf("message %d is %+v", round, wc)
		}
		if err := n.targets[0].postRecv(int(wc.ID)); err != nil {
			return err
		}
	}
	return nil
}

// dc is the peer's node.
var dc struct {
	mu sync.Mutex
	*dcNode
}

// StartDCArgs are the device and the number of targets of a node.
type StartDCArgs struct {
	Device  string
	Targets int
}

// StartDC makes the peer's node.
func (*Peer) StartDC(a StartDCArgs, to *[]DCTarget) (err error) {
	dc.mu.Lock()
	defer dc.mu.Unlock()
	if dc.dcNode, err = newDCNode(a.Device, a.Targets); err != nil {
		return err
	}
	*to, err = dc.addrs()
	return err
}

// DCArgs are a target and a number of rounds.
type DCArgs struct {
	Target DCTarget
	Rounds int
}

// UseDC has the peer send to a target.
func (*Peer) UseDC(a DCArgs, _ *struct{}) error { return dc.use(a.Target, a.Rounds) }

// ReceiveDC has the peer receive messages.
func (*Peer) ReceiveDC(rounds int, _ *struct{}) error { return dc.receive(rounds) }

// CloseDCTarget closes the peer's target alone, CloseDC all that it has.
func (*Peer) CloseDCTarget(struct{}, *struct{}) error { return dc.targets[0].close() }

func (*Peer) CloseDC(struct{}, *struct{}) error { return dc.Close() }

// TestConnectXDC sends between two machines by the dynamically connected transport, both ways at
// once, until the target of one is closed, and then its machine dies.
func TestConnectXDC(t *testing.T) {
	p := dialTwin(t)
	n := labtest.Made(newDCNode(adapter, 1))(t)
	mine := labtest.Must(n.addrs())(t)[0]
	start := func() DCTarget {
		t.Helper()
		var to []DCTarget
		p.call(t, "StartDC", StartDCArgs{adapter, 1}, &to)
		return to[0]
	}
	theirs := start()
	rounds := labtest.Rounds(200, 10)
	var work sync.WaitGroup
	for name, f := range map[string]func() error{
		"sent":                 func() error { return n.use(theirs, rounds) },
		"received":             func() error { return n.receive(rounds) },
		"sent by the peer":     func() error { return p.rpc.Call("Peer.UseDC", DCArgs{mine, rounds}, &struct{}{}) },
		"received by the peer": func() error { return p.rpc.Call("Peer.ReceiveDC", rounds, &struct{}{}) },
	} {
		work.Go(func() {
			if err := f(); err != nil {
				t.Errorf("%s: %v", name, err)
			}
		})
	}
	work.Wait()
	if t.Failed() {
		return
	}

	// writeUntil writes until a request fails, which something has caused meanwhile.
	ah := labtest.Made(n.handle(theirs))(t)
	writeUntil := func(what string, cause func()) {
		t.Helper()
		work.Go(func() {
			time.Sleep(50 * time.Millisecond)
			cause()
		})
		for writes := 0; ; writes++ {
			wc := labtest.Must(n.do(ah, theirs, verbs.SendWR{Opcode: verbs.OpRDMAWrite, SGL: []verbs.SGE{n.local.SGE(0, 60000)}}))(t)
			if wc.Status == verbs.WCSuccess {
				continue
			}
			t.Logf("%s: %v after %d writes", what, wc.Status, writes)
			if wc.Status != verbs.WCRetryExcErr {
				t.Errorf("%s: %v", what, wc.Status)
			}
			break
		}
		work.Wait()
		labtest.Check(t, n.restart())
	}
	writeUntil("the target is closed", func() { p.call(t, "CloseDCTarget", struct{}{}, &struct{}{}) })
	// The initiator reaches other targets, its own for one.
	labtest.Check(t, n.use(mine, 1), n.receive(1))
	p.call(t, "CloseDC", struct{}{}, &struct{}{})
	if testing.Short() {
		return
	}
	theirs = start()
	writeUntil("the machine dies", func() { p.crash(t) })
	theirs = start()
	labtest.Check(t, n.use(theirs, 3))
	p.call(t, "ReceiveDC", 3, &struct{}{})
	p.call(t, "CloseDC", struct{}{}, &struct{}{})
}

// TestConnectXDCPerftest runs perftest's programs between two machines by DC.
func TestConnectXDCPerftest(t *testing.T) {
	p := dialTwin(t)
	port := 18800
	for _, program := range []string{"ib_send_lat", "ib_send_bw", "ib_write_lat", "ib_write_bw", "ib_read_lat", "ib_read_bw", "ib_atomic_lat", "ib_atomic_bw"} {
		for host := 1; host <= 2; host++ { // the server's
			t.Run(fmt.Sprintf("%s, served by host %d", program, host), func(t *testing.T) {
				port++
				// They choose the index of the GID themselves, and the addresses go over the other network.
				c := []string{program, "-F", "-c", "DC", "-d", adapter, "-n", fmt.Sprint(10 * cRounds()), "-p", fmt.Sprint(port)}
				served := p.start(t, host, c...)
				p.awaitTCP(t, host, fmt.Sprint(port))
				connected := p.start(t, 3-host, append(c, fmt.Sprintf("10.9.9.%d", host))...)
				out := connected()
				served() // which prints figures in some of its forms only
				if !strings.Contains(out, "#bytes") {
					t.Errorf("%s", out)
				}
			})
		}
	}
}
