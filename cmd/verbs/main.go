// Command verbs lists, inspects and tests RDMA devices.
//
//	verbs devices              list devices
//	verbs info [DEVICE]        show what devices can do; --json
//	verbs abi                  compare the kernel's structures with this program's; --json
//	verbs demo                 write, read back and compare over RDMA
//	verbs ping -s | -c -a ...  counterpart of rping, works with it
//	verbs perf OP lat|bw HOST  counterpart of perftest: latency and bandwidth
//	verbs pingpong TYPE [HOST] counterpart of ibv_rc_pingpong, works with it; uc, ud, srq
//	verbs cat [-l] HOST:PORT   netcat over rsockets
//	verbs cp FILE HOST:NAME    copy files to and from machines that run verbs cp -l DIR
package main

import (
	"context"
	"os"
	"os/signal"
	"strconv"

	"github.com/alecthomas/kong"
	"golang.org/x/sys/unix"

	"github.com/goverbs/verbs/cmd/verbs/internal/abi"
	"github.com/goverbs/verbs/cmd/verbs/internal/cat"
	"github.com/goverbs/verbs/cmd/verbs/internal/cp"
	"github.com/goverbs/verbs/cmd/verbs/internal/demo"
	"github.com/goverbs/verbs/cmd/verbs/internal/info"
	"github.com/goverbs/verbs/cmd/verbs/internal/perf"
	"github.com/goverbs/verbs/cmd/verbs/internal/ping"
	"github.com/goverbs/verbs/cmd/verbs/internal/pingpong"
)

type commands struct {
	Devices info.Devices `cmd:"" help:"List RDMA devices."`
	Info    info.Cmd     `cmd:"" help:"Show what devices can do."`
	ABI     abi.Cmd      `cmd:"" name:"abi" help:"Compare the structures that programs and this kernel exchange, and show the effect of differences."`
	Demo    demo.Cmd     `cmd:"" help:"Connect a client to a server, write and read its memory, and compare."`
	Ping    ping.Cmd     `cmd:"" help:"Exchange data with a peer, or with rping."`

	Cat cat.Cmd `cmd:"" help:"Join the standard input and output with a connection of rsockets."`

	Cp cp.Cmd `cmd:"" help:"Copy files between machines over RDMA; resumes where a connection broke."`

	Perf     perf.Cmd     `cmd:"" help:"Measure latency and bandwidth, as perftest's programs do."`
	Pingpong pingpong.Cmd `cmd:"" help:"Measure how fast messages go to and fro, also with rdma-core's ibv_*_pingpong."`
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, unix.SIGTERM)
	defer stop()
	k := kong.Parse(new(commands),
		kong.Name("verbs"),
		kong.Description("RDMA from Go, without cgo or rdma-core."),
		kong.UsageOnError(),
		kong.Vars{"pingMin": strconv.Itoa(ping.MinSize)},
		kong.BindTo(ctx, (*context.Context)(nil)))
	k.FatalIfErrorf(k.Run())
}
