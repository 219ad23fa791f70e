//go:build linux

package providertest_test

import (
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/abi"
	"github.com/goverbs/verbs/internal/labtest/tool"
	"github.com/goverbs/verbs/provider"
	"github.com/goverbs/verbs/provider/erdma"
	"github.com/goverbs/verbs/providertest"
)

// Orders of testdata/recv.c.
const (
	orderCreate = iota + 1
	orderRecv
)

// cProgram builds a C program.
func cProgram(t *testing.T, source string) *exec.Cmd {
	t.Helper()
	program := filepath.Join(t.TempDir(), "program")
	gcc := exec.Command(tool.Path(t, "gcc"), "-Wall", "-Ic", "-o", program, source, "-libverbs")
	if out, err := gcc.CombinedOutput(); err != nil {
		t.Skipf("needs libibverbs-dev: %v\n%s", err, out)
	}
	return exec.Command(program)
}

// TestReceivesAgainstC posts random receives with liberdma and with provider/erdma: queues have to be equal.
func TestReceivesAgainstC(t *testing.T) {
	const depth, unit, offset = 8, 32, 4096
	k, _ := newERDMA(t)
	x := providertest.NewComparison(t, cProgram(t, "testdata/recv.c"), "liberdma", unit)
	var queue []byte // this driver's
	createQP := k.CreateQP
	k.CreateQP = func(qp *providertest.QP, u provider.UHW) error {
		queue = providertest.Memory(providertest.Request[abi.ErdmaUreqCreateQp](u).QbufVa, offset+depth*unit)[offset:]
		return createQP(qp, u)
	}
	c, err := erdma.Driver{}.GetContext(k.Device(t), k.Context)
	x.Check(err)
	defer c.Release()
	cq, err := k.NewCQ(c, &provider.CQInit{Depth: 64})
	x.Check(err)
	defer cq.Release()
	cap := verbs.QPCap{MaxSendWR: depth, MaxSendSGE: 1, MaxRecvWR: depth, MaxRecvSGE: 1}

	posts, full := 0, 0
	x.Each(1, func() bool { return posts < 1000 }, func(int) {
		x.Put(orderCreate)
		send, recv, err := k.NewQP(c, &provider.QPInit{Type: verbs.RC, Cap: cap, SendCQ: cq, RecvCQ: cq})
		x.Check(err)
		providertest.SetState(send, recv, verbs.StateRTS)
		for range x.Rand.IntN(2 * depth) {
			wr := verbs.RecvWR{ID: x.Rand.Uint64()}
			if x.Rand.IntN(4) > 0 {
				wr.SGL = []verbs.SGE{{Addr: x.Rand.Uint64(), Length: x.Rand.Uint32N(1 << 20), LKey: x.Rand.Uint32()}}
			}
			x.Put(orderRecv, wr.ID)
			x.PutSGL(wr.SGL)
			x.Do()
			n, err := recv.Post([]verbs.RecvWR{wr})
			posts++
			if got := x.Int(); got != n {
				x.Differ("liberdma posts %d, Go %d: %v", got, n, err)
				break
			} else if n == 0 {
				full++
			}
			if !x.Equal("receives", x.Bytes(depth*unit), queue) {
				break
			}
		}
		send.Release()
		recv.Release()
	})
	if full == 0 || full == posts {
		t.Errorf("%d of %d receives found a full queue", full, posts)
	}
}

// errorsOf has the errors of a test.
type errorsOf struct {
	testing.TB
	all []string
}

func (e *errorsOf) Errorf(format string, args ...any) {
	e.all = append(e.all, strings.TrimSpace(format))
	e.TB.Logf(format, args...)
}

// TestDifferences: queues that differ are reported once each, and a comparison ends after some.
func TestDifferences(t *testing.T) {
	seen := &errorsOf{TB: t}
	x := &providertest.Comparison{T: seen, Describe: func() string { return "two bytes" }}
	n := 0
	x.Each(5, func() bool { return true }, func(i int) {
		if x.Different() || i != n {
			t.Errorf("queues %d have differed before", i)
		}
		n++
		if x.Equal("numbers", []byte{1, 2}, []byte{1, 2}); x.Different() {
			t.Error("equal bytes differ")
		}
		if i%2 == 0 && (x.Equal("numbers", []byte{1, 2}, []byte{1, 3}) || !x.Different()) {
			t.Error("different bytes are equal")
		}
	})
	if len(seen.all) != 6 || n != 11 {
		t.Errorf("%d errors in %d queues", len(seen.all), n)
	}
}
