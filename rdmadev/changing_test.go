package rdmadev

import (
	"context"
	"encoding/binary"
	"errors"
	"math"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/goverbs/verbs/abi"
	"github.com/goverbs/verbs/internal/nldev"
)

// qpList returns a part of a list of QPs. The kernel leaves the port out of those that are in RESET.
func qpList(nums ...uint32) nldev.Attrs {
	var table nldev.Attrs
	for _, n := range nums {
		qp := nldev.Attrs{}.Uint32(abi.RDMA_NLDEV_ATTR_RES_LQPN, n&^port1).Uint32(abi.RDMA_NLDEV_ATTR_RES_PID, 0)
		if n&port1 != 0 {
			qp = qp.Uint32(abi.RDMA_NLDEV_ATTR_PORT_INDEX, 1)
		}
		table = table.Nested(abi.RDMA_NLDEV_ATTR_RES_QP_ENTRY, qp)
	}
	return nldev.Attrs{}.Nested(abi.RDMA_NLDEV_ATTR_RES_QP, table)
}

const port1 = 1 << 24 // of a QP in qpList

// TestListChangesWhileRead lists QPs while others are made and destroyed, so that the kernel
// repeats some between the parts of its answer, and leaves others out: each is listed once.
func TestListChangesWhileRead(t *testing.T) {
	for _, test := range []struct {
		name     string
		readings [][]nldev.Attrs
		want     []uint32
	}{
		{"one part", [][]nldev.Attrs{{qpList(1, 2)}}, []uint32{1, 2}},
		{"repeated", [][]nldev.Attrs{{qpList(1, 2, 3), qpList(3, 4)}, {qpList(0, 1, 2), qpList(3, 4)}}, []uint32{0, 1, 2, 3, 4}},
		{"a port by now", [][]nldev.Attrs{{qpList(7), qpList(8)}, {qpList(8), qpList(7 | port1)}}, []uint32{7, 8}},
		{"left out", [][]nldev.Attrs{{qpList(1, 2, 3), qpList(5)}, {qpList(2, 3, 4), qpList(5)}}, []uint32{1, 2, 3, 4, 5}},
	} {
		asked := 0
		d := Device{Name: "rxe0", src: Source{ask: func(_ int, _ bool, _ nldev.Attrs, each func(nldev.Attrs) error) error {
			parts := test.readings[asked]
			asked++
			for _, p := range parts {
				buffer := slices.Clone(p)
				if err := each(buffer); err != nil {
					return err
				}
				clear(buffer) // valid during the call
			}
			return nil
		}}}
		qps, err := d.QPs()
		if err != nil {
			t.Fatal(err)
		}
		var got []uint32
		for _, q := range qps {
			got = append(got, q.Num)
		}
		slices.Sort(got)
		if !slices.Equal(got, test.want) || asked != len(test.readings) {
			t.Errorf("%s: QPs %v after %d readings, want %v", test.name, got, asked, test.want)
		}
	}
}

// TestUnknownEnumerations: numbers that no kernel has a name for yet, of any size, are unknown.
func TestUnknownEnumerations(t *testing.T) {
	for _, n := range []uint64{100, math.MaxInt64, 1 << 63, math.MaxUint64} {
		number := func(typ int) nldev.Attrs { // of 8 bytes
			b := binary.NativeEndian.AppendUint16(nil, 12)
			return nldev.Attrs(binary.NativeEndian.AppendUint64(binary.NativeEndian.AppendUint16(b, uint16(typ)), n))
		}
		var table, typ int
		var attr nldev.Attrs
		d := Device{Name: "rxe0", src: Source{ask: func(_ int, _ bool, _ nldev.Attrs, each func(nldev.Attrs) error) error {
			return each(nldev.Attrs{}.Nested(table, nldev.Attrs{}.Nested(typ, attr)))
		}}}
		table, typ, attr = abi.RDMA_NLDEV_ATTR_RES_CM_ID, abi.RDMA_NLDEV_ATTR_RES_CM_ID_ENTRY, number(abi.RDMA_NLDEV_ATTR_RES_STATE)
		if ids, err := d.CMIDs(); err != nil || len(ids) != 1 || ids[0].State != "unknown" {
			t.Errorf("%d: CM IDs %+v, %v", n, ids, err)
		}
		table, typ, attr = abi.RDMA_NLDEV_ATTR_RES_SRQ, abi.RDMA_NLDEV_ATTR_RES_SRQ_ENTRY, number(abi.RDMA_NLDEV_ATTR_RES_TYPE)
		if srqs, err := d.SRQs(); err != nil || len(srqs) != 1 || srqs[0].Type != "unknown" {
			t.Errorf("%d: SRQs %+v, %v", n, srqs, err)
		}
		table, typ, attr = abi.RDMA_NLDEV_ATTR_RES_CQ, abi.RDMA_NLDEV_ATTR_RES_CQ_ENTRY, number(abi.RDMA_NLDEV_ATTR_RES_POLL_CTX)
		if cqs, err := d.CQs(); err != nil || len(cqs) != 1 || cqs[0].PollContext != "unknown" {
			t.Errorf("%d: CQs %+v, %v", n, cqs, err)
		}
	}
}

func TestWatchNegativeInterval(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	for _, err := range (Source{Sys: t.TempDir()}).Watch(ctx, WatchOptions{Interval: -1}) {
		if !errors.Is(err, context.DeadlineExceeded) {
			t.Error(err)
		}
	}
}

// TestEachFailureCounts: the error of several counters unwraps to that of each.
func TestEachFailureCounts(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "counters")
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{"a": "-1", "b": "0x10", "c": "1\n2", "d": "7", "e": "N/A"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	counters, err := Port{Num: 1, dir: filepath.Dir(dir)}.Counters()
	var all interface{ Unwrap() []error }
	if len(counters) != 1 || !errors.As(err, &all) || len(all.Unwrap()) != 3 {
		t.Errorf("%v, %v", counters, err)
	}
}

// BenchmarkOwners lists the 1,000 QPs of one process.
func BenchmarkOwners(b *testing.B) {
	var table nldev.Attrs
	for n := range uint32(1000) {
		table = table.Nested(abi.RDMA_NLDEV_ATTR_RES_QP_ENTRY, nldev.Attrs{}.Uint32(abi.RDMA_NLDEV_ATTR_RES_LQPN, n).Uint32(abi.RDMA_NLDEV_ATTR_RES_PID, uint32(os.Getpid())))
	}
	answer := nldev.Attrs{}.Nested(abi.RDMA_NLDEV_ATTR_RES_QP, table)
	d := Device{Name: "rxe0", src: Source{ask: func(_ int, _ bool, _ nldev.Attrs, each func(nldev.Attrs) error) error { return each(answer) }}}
	for b.Loop() {
		if qps, err := d.QPs(); err != nil || len(qps) != 1000 || qps[999].PID != os.Getpid() || qps[999].Comm == "" {
			b.Fatalf("%d QPs, %v", len(qps), err)
		}
	}
}
