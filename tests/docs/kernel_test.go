package docs

import (
	"errors"
	"fmt"
	"os"
	"syscall"
	"testing"

	"github.com/goverbs/verbs/abi"
	"github.com/goverbs/verbs/internal/labtest"
	"github.com/goverbs/verbs/uverbs"
)

// opcodes are those that the page names.
var opcodes = map[string]uverbs.Opcode{
	"uverbs.OpSend":         uverbs.OpSend,
	"uverbs.OpSendImm":      uverbs.OpSendImm,
	"uverbs.OpSendInv":      uverbs.OpSendInv,
	"uverbs.OpRDMAWrite":    uverbs.OpRDMAWrite,
	"uverbs.OpRDMAWriteImm": uverbs.OpRDMAWriteImm,
	"uverbs.OpRDMARead":     uverbs.OpRDMARead,
	"uverbs.OpCompareSwap":  uverbs.OpCompareSwap,
	"uverbs.OpFetchAdd":     uverbs.OpFetchAdd,
	"uverbs.OpAtomicWrite":  uverbs.OpAtomicWrite,
	"uverbs.OpBindMW":       uverbs.OpBindMW,
	"uverbs.OpLocalInv":     uverbs.OpLocalInv,
	"uverbs.OpFlush":        uverbs.OpFlush,
	"abi.IB_UVERBS_WR_TSO":  abi.IB_UVERBS_WR_TSO,
}

// TestKernel asks the kernel whether it answers as the page says.
func TestKernel(t *testing.T) {
	labtest.Each(t, func(t *testing.T, device string) {
		ctx := labtest.OpenDevice(t, device)
		qp, _ := labtest.NewPair(t, labtest.PairOptions{Device: device})
		asked := map[uverbs.Feature]error{}
		for _, f := range uverbs.Features() {
			asked[f] = ctx.Probe(f)
		}
		for _, v := range verbs(t) {
			for i, f := range v.probes {
				answer, known := v.answers[ctx.Driver()][i].on(os.Getenv("VERBS_LAB"))
				if !known {
					answer = "" // any will do
				}
				if f != "" {
					if err := confirm(answer, asked[f]); err != nil {
						t.Errorf("%s: %s: %v", v.function, f, err)
					}
				}
				if err := v.post(qp.QP, answer); err != nil {
					t.Errorf("%s: %v", v.function, err)
				}
			}
		}
	})
}

// confirm compares an answer with what came of a probe.
func confirm(answer string, err error) error {
	var errno syscall.Errno
	is := errors.As(err, &errno)
	want, refusal := errnos[answer]
	switch {
	case err != nil && !errors.Is(err, errors.ErrUnsupported):
		return fmt.Errorf("%w, which does not match errors.ErrUnsupported", err)
	case answer == "yes" && err != nil, answer == "no capability" && (err == nil || is), refusal && errno != want:
		return fmt.Errorf("the page says %s, the kernel %v", answer, err)
	}
	return nil
}

// post tries the opcodes that a row names and compares an answer with what came
// of that: whether the driver has them at all. There are more SGEs than any queue
// takes, so nothing is posted.
func (v verb) post(qp *uverbs.QP, answer string) error {
	for _, name := range v.names() {
		op, is := opcodes[name]
		if !is || answer == "" {
			continue
		}
		n, err := qp.PostSend([]uverbs.SendWR{{Opcode: op, SGL: make([]uverbs.SGE, 1000)}})
		if n != 0 || errors.Is(err, uverbs.ErrOpcode) != (answer != "yes") {
			return fmt.Errorf("%s: the page says %s, posting %d, %v", name, answer, n, err)
		}
	}
	return nil
}
