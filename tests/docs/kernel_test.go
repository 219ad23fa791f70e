package docs

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"syscall"
	"testing"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/abi"
	"github.com/goverbs/verbs/internal/labtest"
	"github.com/goverbs/verbs/uverbs"
)

// opcodes are the opcodes that the page names.
var opcodes = map[string]verbs.Opcode{
	"verbs.OpSend":         verbs.OpSend,
	"verbs.OpSendImm":      verbs.OpSendImm,
	"verbs.OpSendInv":      verbs.OpSendInv,
	"verbs.OpRDMAWrite":    verbs.OpRDMAWrite,
	"verbs.OpRDMAWriteImm": verbs.OpRDMAWriteImm,
	"verbs.OpRDMARead":     verbs.OpRDMARead,
	"verbs.OpCompareSwap":  verbs.OpCompareSwap,
	"verbs.OpFetchAdd":     verbs.OpFetchAdd,
	"verbs.OpAtomicWrite":  verbs.OpAtomicWrite,
	"verbs.OpBindMW":       verbs.OpBindMW,
	"verbs.OpLocalInv":     verbs.OpLocalInv,
	"verbs.OpFlush":        verbs.OpFlush,
	"abi.IB_UVERBS_WR_TSO": abi.IB_UVERBS_WR_TSO + 1, // the value in Opcode
}

// answerable reports whether a probe is a feature of package uverbs or one of questions.
func answerable(probe string) bool {
	_, question := questions[probe]
	return question || slices.Contains(uverbs.Features(), uverbs.Feature(probe))
}

// TestKernel checks that the kernel behaves as the pages describe.
func TestKernel(t *testing.T) {
	labtest.Each(t, func(t *testing.T, device string) {
		ctx := labtest.OpenDevice(t, device)
		qp, _ := labtest.NewPair(t, labtest.PairOptions{Device: device})
		asked := map[string]error{}
		for _, f := range uverbs.Features() {
			asked[string(f)] = ctx.Probe(f)
		}
		for name, ask := range questions {
			asked[name] = ask(t, device)
		}
		for _, p := range pages {
			for _, f := range p.functions(t) {
				f.compare(t, ctx.Driver(), qp.QP, asked)
			}
		}
	})
}

// compare compares a row with the kernel's answers.
func (f function) compare(t *testing.T, driver string, qp *uverbs.QP, asked map[string]error) {
	for i, probe := range f.probes {
		answer, known := f.answers[driver][i].on(os.Getenv("VERBS_LAB"))
		if !known {
			answer = "" // any answer is accepted
		}
		if probe != "" {
			if err := confirm(answer, asked[probe]); err != nil {
				t.Errorf("%s: %s: %v", f.name, probe, err)
			}
		}
		if err := f.post(qp, answer); err != nil {
			t.Errorf("%s: %v", f.name, err)
		}
	}
}

// confirm compares an answer with the result of a probe.
func confirm(answer string, err error) error {
	var errno syscall.Errno
	is := errors.As(err, &errno)
	want, refusal := errnos[answer]
	switch {
	case err != nil && !errors.Is(err, errors.ErrUnsupported):
		return fmt.Errorf("%w, which does not match errors.ErrUnsupported", err)
	case answer == "yes" && err != nil, answer == "no capability" && (err == nil || is), answer == "never" && !errors.Is(err, errNever), refusal && errno != want:
		return fmt.Errorf("the page says %s, the kernel %v", answer, err)
	}
	return nil
}

// post tries to post the opcodes that a row names and compares the result with an answer:
// whether the driver supports them at all. There are more SGEs than any queue accepts, so
// nothing is posted.
func (f function) post(qp *uverbs.QP, answer string) error {
	for _, name := range f.names() {
		op, is := opcodes[name]
		if !is || answer == "" {
			continue
		}
		n, err := qp.PostSend(verbs.SendWR{Opcode: op, SGL: make([]verbs.SGE, 1000)})
		if n != 0 || errors.Is(err, verbs.ErrOpcode) != (answer != "yes") {
			return fmt.Errorf("%s: the page says %s, posting %d, %v", name, answer, n, err)
		}
	}
	return nil
}
