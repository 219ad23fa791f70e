// Package scenarios repeats the scenarios of rdma-core's own tests (tests/test_*.py
// there: the names are the same, the code is not) on every device of the lab. Kernels
// must refuse features that they lack.
package scenarios

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/internal/labtest"
	"github.com/goverbs/verbs/rdmatest"
	"github.com/goverbs/verbs/uverbs"
)

// scenario is one of rdma-core's tests.
type scenario struct {
	name string // "file/test"
	// works reports whether it must work; if not, run must be refused.
	works func(e *env) bool
	run   func(e *env) error
}

// The following functions report where scenarios work. with is for features that only some
// kernels have: it probes the device.
func everywhere(*env) bool { return true }
func nowhere(*env) bool    { return false }
func notOnSIW(e *env) bool { return !e.siw }
func with(f uverbs.Feature) func(*env) bool {
	return func(e *env) bool { return e.ctx.Probe(f) == nil }
}

var scenarios = [][]scenario{addr, atomic, cq, cqEvents, cqEx, device, mr, mw, dmabuf, odp, pd, qp, qpEx, srq, sharedPD, parentDomain, fork}

func TestScenarios(t *testing.T) {
	labtest.RequireBoth(t)
	labtest.Each(t, func(t *testing.T, dev string) {
		for _, group := range scenarios {
			for _, s := range group {
				t.Run(s.name, func(t *testing.T) { s.test(newEnv(t, dev)) })
			}
		}
	})
}

// TestFeatures compares what a device supports with the table of docs/kernels.md. Kernels must
// refuse what it leaves empty.
func TestFeatures(t *testing.T) {
	labtest.RequireKernel(t)
	yes, columns := featureTable(t)
	major, rest, _ := strings.Cut(os.Getenv("VERBS_LAB"), ".")
	minor, _, _ := strings.Cut(rest, ".")
	labtest.Each(t, func(t *testing.T, dev string) {
		ctx := labtest.OpenDevice(t, dev)
		column := major + "." + minor + " " + ctx.Driver()
		if !slices.Contains(columns, column) {
			t.Skipf("docs/kernels.md has no column %s, only %q", column, columns)
		}
		for _, f := range uverbs.Features() {
			switch err := ctx.Probe(f); {
			case yes[column+" "+string(f)] && err != nil:
				t.Errorf("%s: %v", f, err)
			case !yes[column+" "+string(f)] && !errors.Is(err, errors.ErrUnsupported):
				t.Errorf("%s: %v, want a refusal that matches errors.ErrUnsupported", f, err)
			}
		}
	})
}

// featureTable reads the table of features in docs/kernels.md: which cells are "yes", by column and
// feature, and the columns.
func featureTable(t *testing.T) (yes map[string]bool, columns []string) {
	t.Helper()
	yes = map[string]bool{}
	_, text, _ := strings.Cut(string(labtest.Must(os.ReadFile("../../docs/kernels.md"))(t)), "\n| name |")
	for i, line := range strings.Split(text, "\n") {
		cells := strings.Split(strings.Trim(line, "| "), "|")
		for j := range cells {
			cells[j] = strings.TrimSpace(cells[j])
		}
		switch {
		case i == 0:
			columns = cells
		case line == "":
			return yes, columns
		case i > 1 && !slices.Contains(uverbs.Features(), uverbs.Feature(cells[0])):
			t.Errorf("docs/kernels.md: no feature %q", cells[0])
		case i > 1:
			for j, cell := range cells[1:] {
				yes[columns[j]+" "+cells[0]] = cell == "yes"
			}
		}
	}
	t.Fatal("docs/kernels.md has no table of features")
	return nil, nil
}

func (s scenario) test(e *env) {
	works := s.works(e)
	switch err := s.run(e); {
	case works && err != nil:
		e.t.Error(err)
	case !works && !errors.Is(err, errors.ErrUnsupported):
		e.t.Errorf("%v, want a refusal that matches errors.ErrUnsupported", err)
	}
}

// env is the environment of a scenario.
type env struct {
	t    *testing.T
	dev  string
	siw  bool
	ctx  *uverbs.Context
	attr *verbs.DeviceAttr
}

func newEnv(t *testing.T, dev string) *env {
	e := &env{t: t, dev: dev, ctx: labtest.OpenDevice(t, dev)}
	e.siw = e.ctx.Driver() == "siw"
	e.attr = labtest.Must(e.ctx.QueryDevice())(t)
	return e
}

func (e *env) pd() *uverbs.PD {
	e.t.Helper()
	pd := labtest.Made(e.ctx.AllocPD())(e.t)
	return pd
}

func (e *env) pair(opt rdmatest.PairOptions) (a, b *rdmatest.Side) {
	e.t.Helper()
	return labtest.NewPair(e.t, e.dev, opt)
}

// access returns all access rights that the device supports for regions.
func (e *env) access() verbs.Access {
	if e.siw {
		return verbs.AccessAll &^ verbs.AccessRemoteAtomic
	}
	return verbs.AccessAll
}

// wait waits for one completion, by events or by polling.
func (e *env) wait(cq *uverbs.CQ, events bool) (verbs.WC, error) {
	var wc [1]verbs.WC
	ctx, cancel := context.WithTimeout(e.t.Context(), 5*time.Second)
	defer cancel()
	if events {
		_, err := cq.PollWait(ctx, wc[:])
		return wc[0], errors.Join(err, wc[0].Err())
	}
	for ctx.Err() == nil {
		if cq.Poll(wc[:]) == 1 {
			return wc[0], wc[0].Err()
		}
	}
	return wc[0], errors.New("no completion")
}

// do posts a request and waits until it has completed.
func (e *env) do(s *rdmatest.Side, wr verbs.SendWR) error {
	wr.Flags |= verbs.SendSignaled
	if _, err := s.QP.PostSend(wr); err != nil {
		return err
	}
	_, err := e.wait(s.SendCQ, false)
	return err
}

func fill(b []byte) []byte {
	for i := range b {
		b[i] = byte(rand.Uint32())
	}
	return b
}

// traffic sends rounds messages of n bytes in each direction and compares them.
func (e *env) traffic(a, b *rdmatest.Side, rounds, n int, events bool) error {
	for i := range rounds {
		for _, dir := range [][2]*rdmatest.Side{{a, b}, {b, a}} {
			if err := e.message(dir[0], dir[1], n, uint32(i), events); err != nil {
				return fmt.Errorf("round %d: %w", i, err)
			}
		}
	}
	return nil
}

// message sends n bytes from the start of one side's region to a page of the
// other's, with an immediate unless on siw.
func (e *env) message(from, to *rdmatest.Side, n int, imm uint32, events bool) error {
	grh := 0
	if from.QP.Type() == verbs.UD {
		grh = verbs.GRHSize
	}
	const at = 4096
	if _, err := to.PostRecv(verbs.RecvWR{ID: 1, SGL: []verbs.SGE{to.MR.SGE(0, grh), to.MR.SGE(at, n)}}); err != nil {
		return err
	}
	want := bytes.Clone(fill(from.MR.Bytes()[:n]))
	wr := verbs.SendWR{ID: 2, Opcode: verbs.OpSend, Flags: verbs.SendSignaled, SGL: []verbs.SGE{from.MR.SGE(0, n)}, To: from.Peer}
	if !e.siw {
		wr.Opcode, wr.Imm = verbs.OpSendImm, imm
	}
	if _, err := from.QP.PostSend(wr); err != nil {
		return err
	}
	if wc, err := e.wait(from.SendCQ, events); err != nil || wc.ID != 2 || wc.Opcode != verbs.WCSend {
		return fmt.Errorf("send: %+v, %w", wc, err)
	}
	wc, err := e.wait(to.RecvCQ, events)
	if err != nil || wc.ID != 1 || wc.Opcode != verbs.WCRecv || int(wc.ByteLen) != n+grh || !e.siw && wc.Imm() != imm {
		return fmt.Errorf("receive: %+v, %w", wc, err)
	}
	if got := to.MR.Bytes()[at:][:n]; !bytes.Equal(got, want) {
		return errors.New("the message arrived changed")
	}
	return nil
}

// write moves n bytes from a's region to b's with an RDMA WRITE and compares.
func (e *env) write(a, b *rdmatest.Side, n int, rkey uint32) error {
	want := bytes.Clone(fill(a.MR.Bytes()[:n]))
	if err := e.do(a, verbs.SendWR{Opcode: verbs.OpRDMAWrite, SGL: []verbs.SGE{a.MR.SGE(0, n)}, RemoteAddr: b.MR.Addr(), RKey: rkey}); err != nil {
		return err
	}
	if e.siw { // where it completes when it has been sent
		if err := e.do(a, verbs.SendWR{Opcode: verbs.OpRDMARead, SGL: []verbs.SGE{a.MR.SGE(n, n)}, RemoteAddr: b.MR.Addr(), RKey: b.MR.RKey()}); err != nil {
			return err
		}
	}
	if !bytes.Equal(b.MR.Bytes()[:n], want) {
		return errors.New("what was written differs")
	}
	return nil
}

// read moves n bytes from b's region to a's with an RDMA READ and compares.
func (e *env) read(a, b *rdmatest.Side, n int, rkey uint32) error {
	want := bytes.Clone(fill(b.MR.Bytes()[:n]))
	if err := e.do(a, verbs.SendWR{Opcode: verbs.OpRDMARead, SGL: []verbs.SGE{a.MR.SGE(0, n)}, RemoteAddr: b.MR.Addr(), RKey: rkey}); err != nil {
		return err
	}
	if !bytes.Equal(a.MR.Bytes()[:n], want) {
		return errors.New("what was read differs")
	}
	return nil
}

// fails returns an error unless err matches one of the completion statuses.
func fails(err error, want ...verbs.WCStatus) error {
	for _, s := range want {
		if errors.Is(err, s) {
			return nil
		}
	}
	return fmt.Errorf("%v, want %v", err, want)
}

// refused returns an error unless err matches one of want.
func refused(err error, want ...error) error {
	for _, w := range want {
		if errors.Is(err, w) {
			return nil
		}
	}
	return fmt.Errorf("%v, want %v", err, want)
}

// probe returns the scenario of a feature that the kernel refuses.
func probe(f uverbs.Feature) func(*env) error {
	return func(e *env) error { return e.ctx.Probe(f) }
}
