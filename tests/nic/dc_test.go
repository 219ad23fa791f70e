package nic

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/internal/labtest"
	"github.com/goverbs/verbs/uverbs"
)

const (
	dcKey    = 0xfedcba9876543210
	dcMemory = 1 << 20
)

// cPeer is a process of testdata/dc.c, which see.
type cPeer struct {
	t    *testing.T
	to   io.Writer
	from *bufio.Reader
}

func startCPeer(t *testing.T, gid int) *cPeer {
	t.Helper()
	cmd := exec.Command(labtest.Built(t, "c/dc"), device, fmt.Sprint(gid), fmt.Sprint(uint64(dcKey)))
	cmd.Stderr = os.Stderr
	to := labtest.Must(cmd.StdinPipe())(t)
	from := labtest.Must(cmd.StdoutPipe())(t)
	labtest.Check(t, cmd.Start())
	t.Cleanup(func() {
		to.Close()
		if err := cmd.Wait(); err != nil {
			t.Error(err)
		}
	})
	return &cPeer{t, to, bufio.NewReader(from)}
}

// tell makes the program do something, at which do returns, if not nil, before the answer is read.
func (p *cPeer) tell(do func(), format string, args ...any) string {
	p.t.Helper()
	labtest.Must(fmt.Fprintf(p.to, format+"\n", args...))(p.t)
	if do != nil {
		do()
	}
	line, err := p.from.ReadString('\n')
	labtest.Check(p.t, err)
	return strings.TrimSpace(line)
}

func (p *cPeer) want(answer, format string, args ...any) {
	p.t.Helper()
	if got := p.tell(nil, format, args...); got != answer {
		p.t.Errorf("the C program answers %q to %q, want %q", got, fmt.Sprintf(format, args...), answer)
	}
}

// TestDCWithC exchanges all kinds of messages by the dynamically connected transport between this
// library and libmlx5, each of which has an initiator and a target.
func TestDCWithC(t *testing.T) {
	a := newAdapter(t)
	a.needTypes(t)
	ctx := labtest.OpenDevice(t, device)
	gid := labtest.Must(ctx.QueryGID(1, max(a.gid, 0)))(t)
	port := labtest.Must(ctx.QueryPort(1))(t)
	pd := labtest.Made(ctx.AllocPD())(t)
	cq, recvCQ := labtest.Made(ctx.CreateCQ(uverbs.CQOptions{Depth: 64}))(t), labtest.Made(ctx.CreateCQ(uverbs.CQOptions{Depth: 64}))(t)
	srq := labtest.Made(pd.CreateSRQ(uverbs.SRQOptions{MaxWR: 16, MaxSGE: 1}))(t)
	mr := labtest.Made(pd.AllocMR(dcMemory, verbs.AccessAll, uverbs.MROptions{}))(t)
	local := labtest.Made(pd.AllocMR(dcMemory, verbs.AccessLocalWrite, uverbs.MROptions{}))(t)
	dct := labtest.Made(pd.CreateQP(uverbs.QPOptions{Type: verbs.DCT, RecvCQ: recvCQ, SRQ: srq, DCKey: dcKey}))(t)
	dci := labtest.Made(pd.CreateQP(uverbs.QPOptions{Type: verbs.DCI, SendCQ: cq, DCKey: dcKey}))(t)
	labtest.Check(t, dct.StartDC(gid, uverbs.ConnectOptions{Access: verbs.AccessRemoteWrite | verbs.AccessRemoteRead | verbs.AccessRemoteAtomic}))
	labtest.Check(t, dci.StartDC(gid, uverbs.ConnectOptions{RetryCount: 3}))

	p := startCPeer(t, gid.Index)
	answer := p.tell(nil, "target %d %d %d %d %s", dct.Num(), mr.Addr(), mr.RKey(), port.LID, hex.EncodeToString(gid.GID[:]))
	var num, rkey uint32
	var lid uint16
	var addr uint64
	var text string
	labtest.Must(fmt.Sscan(answer, &num, &addr, &rkey, &lid, &text))(t)
	var to verbs.GID
	labtest.Must(hex.Decode(to[:], []byte(text)))(t)
	ah := labtest.Made(pd.CreateAH(verbs.AddressVector{Global: true, DGID: to, SGIDIndex: uint8(gid.Index), HopLimit: 64, Port: 1, DLID: lid}))(t)

	next := func(cq *uverbs.CQ) verbs.WC {
		t.Helper()
		var wcs [1]verbs.WC
		for end := time.Now().Add(time.Minute); cq.Poll(wcs[:]) == 0; time.Sleep(50 * time.Microsecond) {
			if time.Now().After(end) {
				t.Fatal("no completion")
			}
		}
		return wcs[0]
	}
	// post posts a request to the C program's target.
	post := func(wr verbs.SendWR) verbs.WC {
		t.Helper()
		wr.To, wr.RemoteAddr, wr.RKey, wr.Flags = ah.To(num, 0), addr, rkey, verbs.SendSignaled
		labtest.Must(dci.PostSend(wr))(t)
		return next(cq)
	}
	must := func(wr verbs.SendWR) {
		t.Helper()
		wc := post(wr)
		labtest.Check(t, wc.Err())
	}
	for round := range labtest.Rounds(50, 5) {
		b, n := byte(round*5+1), 1+round*1999%60000
		// From C.
		p.want("0", "write %d %d", n, b)
		if !bytes.Equal(mr.Bytes()[:n], bytes.Repeat([]byte{b}, n)) {
			t.Fatalf("round %d: what the C program has written differs", round)
		}
		for i := range n {
			mr.Bytes()[i] = b + 1
		}
		p.want(fmt.Sprintf("0 %d 1", b+1), "read %d", n)
		binary.NativeEndian.PutUint64(mr.Bytes(), 1000)
		p.want("0 1000", "add %d", round)
		if got := binary.NativeEndian.Uint64(mr.Bytes()); got != uint64(1000+round) {
			t.Fatalf("round %d: the sum is %d", round, got)
		}
		labtest.Must(srq.PostRecv(verbs.RecvWR{ID: uint64(round), SGL: []verbs.SGE{mr.SGE(0, 1<<16)}}))(t)
		p.want("0", "send %d %d %d", n, b+2, 70000+round)
		if wc := next(recvCQ); wc.Err() != nil || wc.ID != uint64(round) || int(wc.ByteLen) != n || wc.Imm() != uint32(70000+round) || wc.QPNum != dct.Num() || mr.Bytes()[n-1] != b+2 {
			t.Fatalf("round %d: received %+v", round, wc)
		}
		// To C.
		for i := range n {
			local.Bytes()[i] = b + 3
		}
		must(verbs.SendWR{Opcode: verbs.OpRDMAWrite, SGL: []verbs.SGE{local.SGE(0, n)}})
		clear(local.Bytes()[:n])
		must(verbs.SendWR{Opcode: verbs.OpRDMARead, SGL: []verbs.SGE{local.SGE(0, n)}})
		if !bytes.Equal(local.Bytes()[:n], bytes.Repeat([]byte{b + 3}, n)) {
			t.Fatalf("round %d: what was read from the C program's memory differs", round)
		}
		must(verbs.SendWR{Opcode: verbs.OpSendImm, Imm: uint32(round), SGL: []verbs.SGE{local.SGE(0, n)}})
		p.want(fmt.Sprintf("0 %d %d %d", n, b+3, round), "recv")
		must(verbs.SendWR{Opcode: verbs.OpSendImm, Imm: 9, Inline: []byte{b, b}})
		p.want(fmt.Sprintf("0 2 %d 9", b), "recv")
	}
	// The key that the other side has, and another one.
	if wc := post(verbs.SendWR{Opcode: verbs.OpRDMAWrite, SGL: []verbs.SGE{local.SGE(0, 1)}, Args: &verbs.SendArgs{DCKey: 5}}); wc.Status != verbs.WCRetryExcErr {
		t.Errorf("with another key than the C program's: %v", wc.Status)
	}
	p.want("0", "key %d", 77)
	p.want(fmt.Sprint(int(verbs.WCRetryExcErr)), "write 1 1")
	p.want("0", "key %d", uint64(dcKey))
	p.want("0", "write 1 1")
}
