//go:build linux

package uverbs_test

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/internal/labtest"
	"github.com/goverbs/verbs/rdmatest"
	"github.com/goverbs/verbs/uverbs"
)

// TestImportContext passes a device to another process, which uses it and a region of it.
func TestImportContext(t *testing.T) {
	if handle := os.Getenv("UVERBS_IMPORT"); handle != "" {
		importInChild(t, handle)
		return
	}
	labtest.RequireKernel(t)
	labtest.Each(t, func(t *testing.T, device string) {
		if labtest.Driver(t, device) == "erdma" {
			t.Skip("the kernel's erdma does not tell where the registers of another context are")
		}
		a, b := labtest.NewPair(t, device, rdmatest.PairOptions{})
		copy(b.MR.Bytes(), "the parent's")
		file := os.NewFile(uintptr(labtest.Must(unix.Dup(b.PD.Context().FD()))(t)), "device")
		defer file.Close()
		child := exec.Command(os.Args[0], "-test.run", "^TestImportContext$", "-test.v")
		child.Env = append(os.Environ(), fmt.Sprintf("UVERBS_IMPORT=%d %d", b.PD.Handle(), b.MR.Handle()))
		child.ExtraFiles = []*os.File{file}
		if out, err := child.CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		// The child's calls have not changed this side's objects.
		send(t, a.QP, verbs.SendWR{Opcode: verbs.OpRDMAWrite, Flags: verbs.SendSignaled, Inline: []byte("mine"), RemoteAddr: b.MR.Addr(), RKey: b.MR.RKey()})
		next(t, a.SendCQ)
	})
}

// importInChild is the part of TestImportContext that the other process runs.
func importInChild(t *testing.T, handles string) {
	var pdHandle, mrHandle uint32
	if _, err := fmt.Sscan(handles, &pdHandle, &mrHandle); err != nil {
		t.Fatal(err)
	}
	ctx := labtest.Made(uverbs.ImportContext(3))(t)
	pd := labtest.Made(ctx.ImportPD(pdHandle))(t)
	theirs := labtest.Made(pd.ImportMR(mrHandle))(t)
	if theirs.Len() != 64<<10 || theirs.Bytes() != nil {
		t.Errorf("the parent's region has %d bytes", theirs.Len())
	}
	cq := labtest.Made(ctx.CreateCQ(uverbs.CQOptions{Depth: 4}))(t)
	qp := labtest.Made(pd.CreateQP(uverbs.QPOptions{SendCQ: cq, RecvCQ: cq, Cap: verbs.QPCap{MaxSendWR: 4, MaxRecvWR: 4, MaxSendSGE: 1, MaxRecvSGE: 1}}))(t)
	mine := labtest.Made(pd.AllocMR(4096, verbs.AccessLocalWrite, uverbs.MROptions{}))(t)
	if ctx.Driver() == "siw" { // a QP cannot be connected to itself
		return
	}
	self := labtest.Must(qp.Addr(1))(t)
	if err := qp.Connect(self, self, uverbs.ConnectOptions{Access: verbs.AccessRemoteRead}); err != nil {
		t.Fatal(err)
	}
	// The kernel reads the parent's memory for us.
	send(t, qp, verbs.SendWR{Opcode: verbs.OpRDMARead, Flags: verbs.SendSignaled, SGL: []verbs.SGE{mine.SGE(0, 12)}, RemoteAddr: theirs.Addr(), RKey: theirs.RKey()})
	next(t, cq)
	if got := string(mine.Bytes()[:12]); got != "the parent's" {
		t.Errorf("read %q", got)
	}
}

// TestImportedMemory: an imported region cannot get other memory, as its creator pins what it has.
func TestImportedMemory(t *testing.T) {
	labtest.Require(t)
	maker := labtest.OpenDevice(t, labtest.RXE)
	makerPD := labtest.Made(maker.AllocPD())(t)
	mr := labtest.Made(makerPD.AllocMR(4096, verbs.AccessLocalWrite, uverbs.MROptions{}))(t)
	ctx := labtest.Made(uverbs.ImportContext(maker.FD()))(t)
	pd := labtest.Made(ctx.ImportPD(makerPD.Handle()))(t)
	imported := labtest.Made(pd.ImportMR(mr.Handle()))(t)
	err := imported.Rereg(uverbs.ReregOptions{Memory: make([]byte, 4096)})
	if !errors.Is(err, errors.ErrUnsupported) || !strings.Contains(err.Error(), "memory of an imported region") {
		t.Errorf("other memory for an imported region: %v", err)
	}
}

// TestImportedEvents: events of an imported Context's QP and SRQ go to it, not to the Context that it
// was imported from.
func TestImportedEvents(t *testing.T) {
	labtest.RequireBoth(t)
	labtest.Needs(t, labtest.RXE, uverbs.FeatureSRQ)
	maker := labtest.OpenDevice(t, labtest.RXE)
	ctx := labtest.Made(uverbs.ImportContext(maker.FD()))(t)
	pd := labtest.Made(ctx.AllocPD())(t)
	srq := labtest.Made(pd.CreateSRQ(uverbs.SRQOptions{}))(t)
	cq := labtest.Made(ctx.CreateCQ(uverbs.CQOptions{Depth: 4}))(t)
	qp := labtest.Made(pd.CreateQP(uverbs.QPOptions{SendCQ: cq, RecvCQ: cq, SRQ: srq}))(t)
	self := labtest.Must(qp.Addr(1))(t)
	labtest.Check(t, qp.Connect(self, self, uverbs.ConnectOptions{Access: verbs.AccessRemoteWrite}), srq.SetLimit(1))
	if _, err := srq.PostRecv(verbs.RecvWR{}); err != nil {
		t.Fatal(err)
	}
	wait := labtest.Within(t, 10*time.Second)
	send(t, qp, verbs.SendWR{Opcode: verbs.OpSend})
	if e, err := ctx.NextAsyncEvent(wait); err != nil || e.Type != verbs.EventSRQLimitReached || e.SRQ != srq {
		t.Errorf("%v: %v, want an event of the SRQ", e, err)
	}
	if !labtest.Soft { // rxe has no events of refused requests
		return
	}
	send(t, qp, verbs.SendWR{Opcode: verbs.OpRDMAWrite, Inline: []byte("x"), RKey: 1})
	if e, err := ctx.NextAsyncEvent(wait); err != nil || e.Type != verbs.EventQPAccessErr || e.QP != qp {
		t.Errorf("%v: %v, want an event of the QP", e, err)
	}
}

func TestImportBadFile(t *testing.T) {
	for _, fd := range []int{-1, 12345} {
		if _, err := uverbs.ImportContext(fd); err == nil {
			t.Errorf("file %d was imported", fd)
		}
	}
	null, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	defer null.Close()
	if _, err := uverbs.ImportContext(int(null.Fd())); err == nil {
		t.Error("/dev/null was imported")
	}
}

// TestCounters checks that sent packets are counted.
func TestCounters(t *testing.T) {
	labtest.RequireBoth(t)
	a, b := labtest.NewPair(t, "", rdmatest.PairOptions{})
	name := labtest.SentPackets(a.PD.Context().Device().Name)
	read := func() uint64 {
		c := labtest.Must(a.PD.Context().Counters(1))(t)
		n, ok := c[name]
		if !ok {
			t.Fatalf("no %s among %s", name, strconv.Quote(fmt.Sprint(c)))
		}
		return n
	}
	before := read()
	for range 100 {
		send(t, a.QP, verbs.SendWR{Opcode: verbs.OpRDMAWrite, Flags: verbs.SendSignaled, Inline: []byte("x"), RemoteAddr: b.MR.Addr(), RKey: b.MR.RKey()})
		next(t, a.SendCQ)
	}
	const want = 200 // 100 requests, and as many acknowledgements
	// The kernel may return old values for a moment.
	labtest.Until(t, "200 packets to be counted", func() bool { return read()-before >= want })
	if _, err := a.PD.Context().Counters(2); err == nil {
		t.Error("counters of port 2")
	}
}
