package examples

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/goverbs/verbs/internal/labtest"
)

// With labtest.Soft each example has a device in user space of its own, with the name softName.
// That of servers has the address softServer.
const (
	softName   = "soft0"
	softServer = "127.9.0.1"
)

// softClients is the number of clients that have been started.
var softClients atomic.Int32

// each runs a test on each device, by its name and address.
func each(t *testing.T, test func(t *testing.T, device, addr string)) {
	t.Helper()
	if labtest.Soft {
		t.Run(softName, func(t *testing.T) { test(t, softName, softServer) })
		return
	}
	labtest.Each(t, func(t *testing.T, device string) { test(t, device, labtest.AddrOf(device)) })
}

// command returns the command of an example. Arguments with 127.0.0.1 are of examples without a
// device.
func command(t *testing.T, ctx context.Context, name string, args ...string) *exec.Cmd {
	t.Helper()
	cmd := exec.CommandContext(ctx, labtest.Built(t, name), args...)
	if labtest.Soft && !slices.ContainsFunc(args, func(a string) bool { return strings.Contains(a, "127.0.0.1") }) {
		addr := softServer
		if name != "msg-recv" && !slices.Contains(args, "serve") && !slices.Contains(args, "server") {
			addr = fmt.Sprintf("127.9.1.%d", 1+softClients.Add(1)%250)
		}
		cmd.Env = append(os.Environ(), "VERBS_SOFT="+addr)
	}
	return cmd
}
