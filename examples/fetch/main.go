// Command fetch copies a file from a server by RDMA READ. The server registers the file's contents
// and announces address, length and key as private data. After that only its device is involved.
//
//	fetch serve 192.0.2.1:7471 FILE
//	fetch [-timeout 1m] 192.0.2.1:7471 OUT
package main

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"flag"
	"fmt"
	"log"
	"os"
	"os/signal"
	"time"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/cm"
	_ "github.com/goverbs/verbs/soft" // VERBS_SOFT makes a device in user space
)

const chunk, depth, maxFile = 64 << 10, 16, 1 << 30 // bytes of a READ, READs in flight, bytes of a file
const keepAlive = 15 * time.Second

// region is what the server announces.
type region struct{ Addr, Len, RKey uint64 }

func main() {
	log.SetFlags(0)
	timeout := flag.Duration("timeout", time.Minute, "time limit for connecting and reading")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	context.AfterFunc(ctx, stop) // a second signal ends the process
	err := errors.New("usage: fetch serve ADDRESS:PORT FILE | fetch [-timeout D] ADDRESS:PORT OUT")
	if flag.NArg() == 3 && flag.Arg(0) == "serve" {
		err = serve(ctx, flag.Arg(1), flag.Arg(2))
	} else if flag.NArg() == 2 {
		ctx, cancel := context.WithTimeout(ctx, *timeout)
		defer cancel()
		err = fetch(ctx, flag.Arg(0), flag.Arg(1))
	}
	if err != nil {
		log.Fatal(err)
	}
}

func serve(ctx context.Context, addr, file string) error {
	data, err := os.ReadFile(file)
	if err != nil || len(data) == 0 {
		return cmp.Or(err, fmt.Errorf("%s is empty", file))
	}
	l, err := cm.Listen(ctx, addr)
	if err != nil {
		return err
	}
	defer l.Close()
	fmt.Println("listening on", l.Addr())
	opt := cm.Options{KeepAlive: keepAlive, Setup: func(e *cm.Endpoint) error {
		mr, err := e.RegisterMR(data, verbs.AccessRemoteRead)
		if err != nil {
			return err
		}
		ad, err := binary.Append(nil, binary.BigEndian, region{mr.Addr(), uint64(mr.Len()), uint64(mr.RKey())})
		return errors.Join(err, e.Announce(ad))
	}}
	for {
		req, err := l.Accept(ctx)
		if ctx.Err() != nil {
			if err == nil {
				req.Reject(nil)
			}
			ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
			defer cancel()
			return l.Shutdown(ctx) // clients may finish
		}
		if err != nil {
			return err
		}
		go func() {
			if conn, err := req.Accept(ctx, opt); err != nil {
				log.Print(err)
			} else {
				await(conn)
				conn.Close()
			}
		}()
	}
}

// await waits for the end of a connection whose program does nothing. It takes the completions of the
// tests that notice a client whose machine is gone: there is no other test before.
func await(conn *cm.Endpoint) {
	for {
		select {
		case <-conn.Done():
			return
		case <-time.After(keepAlive):
			var wcs [4]verbs.WC
			conn.SendCQ.Poll(wcs[:])
		}
	}
}

func fetch(ctx context.Context, addr, out string) error {
	conn, err := cm.Dial(ctx, addr)
	if err != nil {
		return err
	}
	defer conn.Close()
	var file region
	if _, err := binary.Decode(conn.PrivateData, binary.BigEndian, &file); err != nil || file.Len == 0 || file.Len > maxFile {
		return fmt.Errorf("%v announces no file of 1 to %d bytes", conn.RemoteAddr(), maxFile)
	}
	mr, err := conn.AllocMR(int(file.Len), verbs.AccessLocalWrite)
	if err != nil {
		return err
	}
	start := time.Now()
	for off, inFlight := 0, 0; off < mr.Len() || inFlight > 0; inFlight-- {
		for ; off < mr.Len() && inFlight < depth; inFlight++ {
			n := min(chunk, mr.Len()-off)
			if _, err := conn.QP.PostSend(verbs.SendWR{Opcode: verbs.OpRDMARead, Flags: verbs.SendSignaled,
				SGL: []verbs.SGE{mr.SGE(off, n)}, RemoteAddr: file.Addr + uint64(off), RKey: uint32(file.RKey)}); err != nil {
				return err
			}
			off += n
		}
		if _, err := conn.SendCQ.Next(ctx); err != nil {
			return err
		}
	}
	fmt.Printf("%d bytes in %v\n", mr.Len(), time.Since(start).Round(time.Microsecond))
	return os.WriteFile(out, mr.Bytes(), 0o666)
}
