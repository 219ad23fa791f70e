//go:build linux

package rdmatest_test

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/cm"
	"github.com/goverbs/verbs/internal/labtest"
	"github.com/goverbs/verbs/internal/labtest/labdev"
	"github.com/goverbs/verbs/rdmatest"
	"github.com/goverbs/verbs/rsock"
	"github.com/goverbs/verbs/uverbs"
)

func TestEach(t *testing.T) {
	labtest.RequireBoth(t)
	var names []string
	rdmatest.Each(t, func(t *testing.T, d rdmatest.Device) {
		names = append(names, d.Name)
		driver := map[string]string{labtest.RXE: "rxe", labtest.SIW: "siw", labtest.MLX5: "mlx5_core", "erdma_0": "erdma"}[d.Name]
		if labtest.Soft {
			driver = "soft"
		}
		if d.Addr.String() != labtest.AddrOf(d.Name) || d.IWARP != labtest.IWARP(t, d.Name) || d.Driver != driver {
			t.Errorf("%+v", d)
		}
		if ctx := d.Open(t); ctx.Device().Name != d.Name {
			t.Error(ctx.Device().Name)
		}
		l, err := rsock.Listen("rdma", d.ListenAddr())
		if err != nil {
			t.Fatal(err)
		}
		l.Close()
	})
	want, last := "[rxe0 siw0]", "siw"
	switch {
	case labtest.Soft:
		want, last = "[rxe0]", "soft"
	case labtest.Addressed()[0] != labtest.RXE, len(labtest.Addressed()) > 2:
		want, last = "["+labdev.Adapters(labtest.Adapters())[0]+" rxe0 siw0]", "siw"
	}
	if fmt.Sprint(names) != want {
		t.Error(names)
	}
	if d := rdmatest.Find(t, last); d.Name != names[len(names)-1] {
		t.Errorf("%+v", d)
	}
}

// TestScenarios plays the scenarios on the first device. Package tests/scenarios plays them on all.
func TestScenarios(t *testing.T) {
	labtest.Require(t)
	rdmatest.CheckLeaks(t)
	rdmatest.Scenarios(t, rdmatest.Devices(t)[0])
}

// TestConnect sends a message over a connection, and leaves nothing behind.
func TestConnect(t *testing.T) {
	rdmatest.Each(t, func(t *testing.T, d rdmatest.Device) {
		rdmatest.CheckLeaks(t)
		var buf interface{ Bytes() []byte }
		client, server := rdmatest.Connect(t, d, cm.Options{}, cm.Options{Setup: func(e *cm.Endpoint) error {
			mr, err := e.AllocMR(16, verbs.AccessLocalWrite)
			if err != nil {
				return err
			}
			buf = mr
			_, err = e.QP.PostRecv(verbs.RecvWR{SGL: []verbs.SGE{mr.SGE(0, 16)}})
			return err
		}})
		if _, err := client.QP.PostSend(verbs.SendWR{Opcode: verbs.OpSend, Inline: []byte("hello")}); err != nil {
			t.Fatal(err)
		}
		wc, err := server.RecvCQ.Next(t.Context())
		if err != nil || wc.Err() != nil || string(buf.Bytes()[:wc.ByteLen]) != "hello" {
			t.Errorf("%+v, %v", wc, err)
		}
	})
}

// TestNewPair sends a message and a datagram between QPs, and leaves nothing behind.
func TestNewPair(t *testing.T) {
	labtest.RequireBoth(t)
	rdmatest.Each(t, func(t *testing.T, d rdmatest.Device) {
		labtest.Needs(t, d.Name, uverbs.FeatureSRQ)
		for typ, head := range map[verbs.QPType]int{verbs.RC: 0, verbs.UD: verbs.GRHSize} {
			if d.IWARP && typ == verbs.UD {
				continue
			}
			t.Run(typ.String(), func(t *testing.T) {
				rdmatest.CheckLeaks(t)
				ctx := d.Open(t)
				a, b := rdmatest.NewPair(t, ctx, ctx, rdmatest.PairOptions{Type: typ, SRQ: true, Events: true})
				_, err := b.PostRecv(verbs.RecvWR{SGL: []verbs.SGE{b.MR.SGE(0, 100)}})
				_, serr := a.QP.PostSend(verbs.SendWR{Opcode: verbs.OpSend, Inline: []byte("hello"), To: a.Peer})
				wc, rerr := b.RecvCQ.Next(t.Context())
				if err := errors.Join(err, serr, rerr); err != nil || string(b.MR.Bytes()[head:wc.ByteLen]) != "hello" {
					t.Errorf("%+v, %v", wc, err)
				}
			})
		}
	})
}

// recorder is a test that records how it ends.
type recorder struct {
	*testing.T
	said     string
	cleanups []func()
}

func (r *recorder) Cleanup(f func())                  { r.cleanups = append(r.cleanups, f) }
func (r *recorder) Errorf(format string, args ...any) { r.said += fmt.Sprintf(format, args...) + "\n" }
func (r *recorder) Fatalf(format string, args ...any) {
	r.Errorf(format, args...)
	runtime.Goexit()
}
func (r *recorder) Skipf(format string, args ...any) { r.Fatalf("skipped: "+format, args...) }

func record(t *testing.T, f func(t *recorder)) string {
	r := &recorder{T: t}
	done := make(chan bool)
	go func() {
		defer close(done)
		f(r)
	}()
	<-done
	for i := len(r.cleanups); i > 0; i-- {
		r.cleanups[i-1]()
	}
	return r.said
}

func TestLeak(t *testing.T) {
	defer rdmatest.SetPatience(time.Millisecond)()
	d := rdmatest.Devices(t)[0]
	var pd *uverbs.PD
	said := record(t, func(r *recorder) {
		rdmatest.CheckLeaks(r)
		pd = labtest.Must(d.Open(t).AllocPD())(t)
	})
	pd.Close()
	if !strings.Contains(said, "PDs of "+d.Name+": 0 before the test, 1 after it\n") {
		t.Errorf("%q", said)
	}
}

// TestSoft runs tests of this program on a device that VERBS_SOFT requests.
func TestSoft(t *testing.T) {
	cmd := exec.Command(os.Args[0], "-test.run", "^(TestConnect|TestLeak)$", "-test.v")
	cmd.Env = append(slices.DeleteFunc(os.Environ(), func(s string) bool { return strings.HasPrefix(s, "VERBS_") }), "VERBS_SOFT=127.0.0.4")
	out, err := cmd.CombinedOutput()
	if strings.Contains(string(out), "already in use") || strings.Contains(string(out), "no interface has") {
		t.Skipf("%s", out)
	}
	if err != nil || !strings.Contains(string(out), "PASS: TestConnect/soft0") || !strings.Contains(string(out), "PASS: TestLeak") {
		t.Errorf("%v\n%s", err, out)
	}
}

func TestMissing(t *testing.T) {
	for mode, want := range map[string]string{
		"":        "skipped: needs a device of driver mlx9: go test -exec rdmalab\n",
		"require": "this machine does not have a device of driver mlx9\n",
	} {
		t.Setenv("RDMATEST", mode)
		if said := record(t, func(r *recorder) { rdmatest.Find(r, "mlx9") }); said != want {
			t.Errorf("RDMATEST=%s: %q", mode, said)
		}
	}
}
