package nic

import (
	"fmt"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/goverbs/verbs/internal/labtest"
)

// reResult matches a line of results: bytes, iterations, and figures.
var reResult = regexp.MustCompile(`(?m)^ *\d+ +\d+ +[0-9.]+ +[0-9.]+`)

// TestPerftest runs each of perftest's programs in its modes. They do not check data.
func TestPerftest(t *testing.T) {
	a := newAdapter(t)
	iters := fmt.Sprint(labtest.Rounds(1000, 20))
	for _, r := range []struct {
		programs []string
		cases    []string // arguments; with -short only the first two
	}{
		{[]string{"ib_send_lat"}, []string{"-s 4096", "-s 4096 -c DC", "-s 65536 -e", "-s 64 -I 64", "-s 4096 -c UC", "-s 1024 -c UD", "-s 1024 -c UD -e", "-s 4096 -R"}},
		{[]string{"ib_send_bw"}, []string{"-s 65536", "-s 65536 -c DC", "-s 65536 -e", "-s 4096 -b", "-s 4096 -q 4", "-s 4096 -l 8", "-s 4096 -c UC", "-s 1024 -c UD", "-s 1024 -c UD -e", "-s 4096 --use-srq", "-s 65536 -R"}},
		{[]string{"ib_write_lat"}, []string{"-s 4096", "-s 4096 -c DC", "-s 64 -I 64", "-s 4096 -c UC", "-s 4096 -R", "-s 4096 --write_with_imm"}},
		{[]string{"ib_write_bw"}, []string{"-s 65536", "-s 65536 -c DC", "-s 4096 -b", "-s 4096 -q 4", "-s 4096 -l 8", "-s 4096 -c UC", "-s 65536 -R", "-s 4096 --write_with_imm"}},
		{[]string{"ib_read_lat"}, []string{"-s 4096", "-s 4096 -c DC", "-s 65536 -e", "-s 4096 -R"}},
		{[]string{"ib_read_bw"}, []string{"-s 65536", "-s 65536 -c DC", "-s 65536 -e", "-s 4096 -b", "-s 4096 -q 4", "-s 4096 -l 8", "-s 65536 -o 1", "-s 65536 -R"}},
		{[]string{"ib_atomic_lat", "ib_atomic_bw"}, []string{"-A FETCH_AND_ADD", "-A FETCH_AND_ADD -c DC", "-A CMP_AND_SWAP", "-e", "-R"}},
	} {
		for _, program := range r.programs {
			t.Run(program, func(t *testing.T) {
				help, _ := exec.Command(program, "--help").CombinedOutput() // whose exit status is 1
				modes := a.modes(program, r.cases)
				if len(modes) == 0 {
					t.Skip("the driver of 6.1 has no atomics")
				}
				for _, args := range labtest.Few(2, modes) {
					t.Run(args, func(t *testing.T) {
						const imm = "--write_with_imm"
						if strings.Contains(args, imm) && !strings.Contains(string(help), imm) {
							t.Skipf("this release has no %s", imm)
						}
						all := slices.Concat([]string{program, "-F", "-d", device, "-n", iters}, a.gidArgs("-x"), strings.Fields(args))
						if slices.Contains(all, "-R") {
							a.needAddress(t)
						}
						_, client := a.perftest(t, all...).wait()
						for range 3 { // it measures the processor's clock first, which may fail on a busy machine: times are infinite then
							if !strings.Contains(client, "Correlation coefficient") {
								break
							}
							_, client = a.perftest(t, all...).wait()
						}
						if !reResult.MatchString(client) {
							t.Errorf("the client printed\n%s", client)
						}
					})
				}
			})
		}
	}
}

// modes returns the cases of a program that the adapter has. On iWARP all connect by rdma_cm, one QP each.
func (a adapter) modes(program string, cases []string) (some []string) {
	for _, args := range cases {
		if a.erdma && regexp.MustCompile(`-c |--use-srq`).MatchString(args) || labtest.OlderERDMA(device) && strings.HasPrefix(program, "ib_atomic") {
			continue
		}
		if a.iwarp {
			if strings.Contains(args, "-q ") {
				continue
			}
			// On iWARP ib_send_bw counts the peer's receives, which the peer writes to its memory. With -e it waits
			// for a completion instead when it has used them up, and its requests have none: it hangs.
			if program == "ib_send_bw" && strings.HasSuffix(args, "-e") {
				continue
			}
			if args = strings.TrimSuffix(args, " -R") + " -R"; slices.Contains(some, args) {
				continue
			}
		}
		some = append(some, args)
	}
	return some
}

// perftest starts both sides. With -R the server listens on the adapter.
func (a adapter) perftest(t *testing.T, args ...string) couple {
	t.Helper()
	if !slices.Contains(args, "-R") {
		return startTCP(t, patience, args...)
	}
	c := startCM(t, args, append(slices.Clip(args), address))
	return c
}
