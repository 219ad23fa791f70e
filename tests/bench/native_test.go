package bench

import (
	"flag"
	"strings"
	"testing"

	"github.com/goverbs/verbs/internal/labtest"
	"github.com/goverbs/verbs/tests/bench/record"
)

var (
	native  = flag.Bool("native", false, "measure user space alone: TestNative on User-mode Linux (make bench-native), TestMLX5 and TestErdma on any machine (make bench-mlx5, bench-erdma)")
	counted = flag.Bool("counted", false, "count the instructions of Go in user space, with LAB_ACCEL=icount: make bench-quick")
)

// TestNative measures the cost of posting and polling in user space, and compares it with
// libibverbs and with a cgo wrapper of libibverbs. All sides leave out the doorbell, a
// system call: for one that works in the kernel (siw's) Go must also notify its scheduler,
// which takes some 20 ns more.
func TestNative(t *testing.T) {
	if !*native && !*counted {
		t.Skip("neither -native nor -counted is set")
	}
	labtest.RequireKernel(t)
	sides := []side{{labtest.Built(t, "native-go"), "7490", nil}}
	besides, rounds := []string{""}, "24" // the first ones take more; polls count only if all have completed by then
	if *native {
		sides = append(sides, side{labtest.Built(t, "c/native"), "7491", nil}, side{labtest.Built(t, "native-cgo"), "7492", nil})
		besides, rounds = []string{"libibverbs", "cgo"}, "60"
	}
	labtest.Each(t, func(t *testing.T, device string) {
		var measure []func() result
		for _, s := range sides {
			measure = append(measure, func() result { return s.once(t, labtest.AddrOf(device), s.port, rounds) })
		}
		all := inTurns(*reps, 0, measure...)
		for _, work := range []string{"sends", "receives"} {
			for i, rs := range all {
				if want, got := all[0].figure(work).Min(), rs.figure(work); got.Min() != want || got.Max() != want {
					t.Errorf("%s: %s %v, others %v", sides[i].program, work, got, want)
				}
			}
		}
		if n := all[0].figure("allocs").Max(); n != 0 {
			t.Errorf("%v allocations in a round", n)
		}
		for i, beside := range besides {
			for _, g := range record.Groups {
				if g.Name != record.UserSpace && *native || g.Name != record.Instrs && *counted {
					continue
				}
				for _, w := range g.Works {
					if w.Beside != beside {
						continue
					}
					l := record.Line{Group: g.Name, Device: device, Name: w.Name, Unit: "instructions", Beside: beside, Ours: all[0].figure(w.Name)}
					if *native {
						l.Unit, l.C = "ns", all[i+1].figure(w.Name)
					}
					report(t, l)
				}
			}
		}
	})
}

// TestMLX5 measures the cost of posting and polling on mlx5, with an adapter that is not there, and
// compares it with libmlx5.
func TestMLX5(t *testing.T) {
	if !*native && !*counted {
		t.Skip("neither -native nor -counted is set")
	}
	group, beside, unit := record.InstrsMLX5, "", "instructions"
	if *native {
		group, beside, unit = record.MLX5, "libmlx5", "ns"
	}
	for _, device := range []string{"mlx5", "mlx5-single"} {
		for _, typ := range []string{"RC", "DCI"} {
			t.Run(device+"/"+typ, func(t *testing.T) {
				var options []string
				if device == "mlx5-single" {
					options = append(options, "-single")
				}
				if typ == "DCI" {
					options = append(options, "-dci")
				}
				sides := []opener{side{labtest.Built(t, "mlx5"), "", options}.opens(t, "", 0)}
				if *native {
					sides = append(sides, side{labtest.Built(t, "c/mlx5"), "", options}.opens(t, "", 0))
				}
				all := turnsOf(10, sides...)
				if n := all[0].figure("allocs").Max(); n != 0 {
					t.Errorf("%v allocations in a round", n)
				}
				for _, g := range record.Groups {
					for _, w := range g.Works {
						if g.Name != group || w.Beside != beside || strings.HasPrefix(w.Name, "dci_") != (typ == "DCI") {
							continue
						}
						l := record.Line{Group: group, Device: device, Name: w.Name, Unit: unit, Beside: beside, Ours: all[0].figure(w.Name)}
						if *native {
							l.C = all[1].figure(w.Name)
							if c, ours := all[1].figure("blocks"), all[0].figure("blocks"); c.Max() != ours.Max() {
								t.Errorf("send queues of %v blocks, libmlx5's have %v", ours, c)
							}
						}
						report(t, l)
					}
				}
			})
		}
	}
}

// TestErdma measures the cost of posting and polling on erdma, with an adapter that is not there, and
// compares it with liberdma, whose queues always have locks.
func TestErdma(t *testing.T) {
	if !*native && !*counted {
		t.Skip("neither -native nor -counted is set")
	}
	group, unit := record.InstrsErdma, "instructions"
	if *native {
		group, unit = record.Erdma, "ns"
	}
	for device, options := range map[string][]string{"erdma": nil, "erdma-single": {"-single"}} {
		t.Run(device, func(t *testing.T) {
			sides := []opener{side{labtest.Built(t, "erdma"), "", options}.opens(t, "", 0)}
			if *native {
				sides = append(sides, side{labtest.Built(t, "c/erdma"), "", nil}.opens(t, "", 0))
			}
			all := turnsOf(10, sides...)
			if n := all[0].figure("allocs").Max(); n != 0 {
				t.Errorf("%v allocations in a round", n)
			}
			for _, other := range all[1:] {
				if c, ours := other.figure("units"), all[0].figure("units"); c.Max() != ours.Max() {
					t.Errorf("send queues of %v units, liberdma's have %v", ours, c)
				}
			}
			for _, g := range record.Groups {
				for _, w := range g.Works {
					if g.Name != group {
						continue
					}
					l := record.Line{Group: g.Name, Device: device, Name: w.Name, Unit: unit, Beside: w.Beside, Ours: all[0].figure(w.Name)}
					if *native {
						l.C = all[1].figure(w.Name)
					}
					report(t, l)
				}
			}
		})
	}
}
