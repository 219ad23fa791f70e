//go:build linux

package uverbs_test

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/internal/labtest"
	"github.com/goverbs/verbs/uverbs"
)

// TestRefusals makes mistakes with the attributes of QPs and with address vectors: each error names
// the field, and its range if it has one.
func TestRefusals(t *testing.T) {
	labtest.RequireBoth(t)
	labtest.Each(t, func(t *testing.T, device string) {
		ctx := labtest.OpenDevice(t, device)
		if ctx.Device().IWARP() {
			t.Skip("it takes no address vectors, and its driver has rules of its own")
		}
		pd := labtest.Made(ctx.AllocPD())(t)
		cq := labtest.Made(ctx.CreateCQ(uverbs.CQOptions{Depth: 8}))(t)
		qp := labtest.Made(pd.CreateQP(uverbs.QPOptions{SendCQ: cq, RecvCQ: cq}))(t)
		port := labtest.Must(ctx.QueryPort(1))(t)
		ports := fmt.Sprintf("out of range: 1 to %d", labtest.Must(ctx.QueryDevice())(t).Ports)
		refused := func(what string, err error, words ...string) {
			t.Helper()
			for _, w := range words {
				if err == nil || !strings.Contains(err.Error(), w) || !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.ENODATA) {
					t.Errorf("%s: %v; want %q", what, err, w)
				}
			}
			if strings.Contains(fmt.Sprint(err), "MaxAH") {
				t.Errorf("%s: a wrong lead: %v", what, err)
			}
		}
		initMask := verbs.MaskState | verbs.MaskPKeyIndex | verbs.MaskPort | verbs.MaskAccess
		init := verbs.QPAttr{State: verbs.StateInit, Port: 1}
		bad := init
		bad.Port = 9
		refused("port of INIT", qp.Modify(bad, initMask), "Port 9", ports)
		bad = init
		bad.PKeyIndex = uint16(port.PKeys)
		err := qp.Modify(bad, initMask)
		refused("P_Key", err, fmt.Sprintf("PKeyIndex %d: out of range: 0 to %d", port.PKeys, port.PKeys-1))
		if !errors.Is(err, verbs.ErrRange) {
			t.Errorf("P_Key: %v", err)
		}
		labtest.Check(t, qp.Modify(init, initMask))

		gid := labtest.Must(ctx.FindGID(1, netip.Addr{}))(t)
		good := verbs.AddressVector{Global: true, DGID: gid.GID, SGIDIndex: uint8(gid.Index), HopLimit: 64, Port: 1}
		rtr := verbs.QPAttr{State: verbs.StateRTR, PathMTU: verbs.MTU1024, DestQPNum: qp.Num(), MaxDestRDAtomic: 1, AV: good}
		rtrMask := verbs.MaskState | verbs.MaskAV | verbs.MaskPathMTU | verbs.MaskDestQPNum | verbs.MaskRQPSN | verbs.MaskMaxDestRDAtomic | verbs.MaskMinRNRTimer
		for _, test := range []struct {
			what  string
			spoil func(*verbs.AddressVector)
			words []string
		}{
			{"port", func(a *verbs.AddressVector) { a.Port = 0 }, []string{"Port 0", ports}},
			{"not global", func(a *verbs.AddressVector) { a.Global = false }, []string{"RoCE needs Global"}},
			{"GID index", func(a *verbs.AddressVector) { a.SGIDIndex = 77 }, []string{"no GID 77", "port 1"}},
			{"other family", func(a *verbs.AddressVector) { a.DGID = verbs.GID{0: 0xfd, 15: 1} }, []string{"no path from", "which is IPv6"}},
		} {
			if port.LinkLayer == verbs.LinkInfiniBand && test.what != "port" {
				continue // there the others are allowed
			}
			a := rtr
			test.spoil(&a.AV)
			refused("RTR, "+test.what, qp.Modify(a, rtrMask), test.words...)
			ah, err := pd.CreateAH(a.AV)
			if err == nil && test.what == "other family" { // a driver may find the path later
				labtest.Check(t, ah.Close())
				continue
			}
			refused("AH, "+test.what, err, test.words...)
		}
		bad = rtr
		bad.PathMTU = 0
		refused("MTU", qp.Modify(bad, rtrMask), "PathMTU 0", "1 to 5")
		for name, set := range map[string]struct {
			mask verbs.QPAttrMask
			set  func(*verbs.QPAttr)
		}{
			"RetryCount 9: out of range: 0 to 7":    {verbs.MaskRetryCount, func(a *verbs.QPAttr) { a.RetryCount = 9 }},
			"RNRRetry 8: out of range: 0 to 7":      {verbs.MaskRNRRetry, func(a *verbs.QPAttr) { a.RNRRetry = 8 }},
			"Timeout 32: out of range: 0 to 31":     {verbs.MaskTimeout, func(a *verbs.QPAttr) { a.Timeout = 32 }},
			"MinRNRTimer 99: out of range: 0 to 31": {verbs.MaskMinRNRTimer, func(a *verbs.QPAttr) { a.MinRNRTimer = 99 }},
		} {
			a := verbs.QPAttr{State: verbs.StateRTS}
			set.set(&a)
			refused("RTS", qp.Modify(a, verbs.MaskState|set.mask), name)
		}
		if err := qp.StartUD(257, 1); !errors.Is(err, verbs.ErrRange) { // not port 1
			t.Errorf("StartUD of port 257: %v", err)
		}
	})
}

// TestLongNumbers passes numbers that have the lower 32 bits of good ones.
func TestLongNumbers(t *testing.T) {
	labtest.Require(t)
	labtest.Needs(t, labtest.RXE, uverbs.FeatureSRQ)
	ctx := labtest.OpenDevice(t, labtest.RXE)
	pd := labtest.Made(ctx.AllocPD())(t)
	srq := labtest.Made(pd.CreateSRQ(uverbs.SRQOptions{MaxWR: 8}))(t)
	long := int64(1) << 32
	for _, n := range []int{-1, int(long + 1)} {
		if int64(n) != long+1 && n > 0 {
			continue // no number is that long here
		}
		_, err := ctx.QueryGID(1, n)
		for what, err := range map[string]error{"Resize": srq.Resize(n), "SetLimit": srq.SetLimit(n), "QueryGID": err} {
			if !errors.Is(err, verbs.ErrRange) {
				t.Errorf("%s(%d): %v", what, n, err)
			}
		}
	}
	if now, err := srq.Query(); err != nil || now.Limit != 0 || now.MaxWR != srq.Cap() {
		t.Errorf("%+v of %d: %v", now, srq.Cap(), err)
	}
}

// TestExactLimits asks for more than a driver's queues hold: the error names one limit, which is
// the right one.
func TestExactLimits(t *testing.T) {
	labtest.RequireBoth(t)
	labtest.Each(t, func(t *testing.T, device string) {
		ctx := labtest.OpenDevice(t, device)
		pd := labtest.Made(ctx.AllocPD())(t)
		cq := labtest.Made(ctx.CreateCQ(uverbs.CQOptions{Depth: 8}))(t)
		create := func(sends int) error {
			qp, err := pd.CreateQP(uverbs.QPOptions{SendCQ: cq, RecvCQ: cq, Cap: verbs.QPCap{MaxSendWR: sends, MaxSendSGE: 1, MaxInline: 64}})
			if err == nil {
				labtest.Check(t, qp.Close())
			}
			return err
		}
		err := create(1 << 24)
		var most int
		if _, rest, one := strings.Cut(fmt.Sprint(err), "of at most "); !one || strings.Contains(rest, "at most") {
			t.Fatalf("not one limit: %v", err)
		} else if _, err := fmt.Sscanf(rest, "%d", &most); err != nil {
			t.Fatal(err)
		}
		if err := create(most + 1); err == nil {
			t.Errorf("%d requests of at most %d are taken", most+1, most)
		}
	})
}
