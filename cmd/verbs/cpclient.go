package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"time"

	"github.com/schollz/progressbar/v3"
	"golang.org/x/term"

	"github.com/goverbs/verbs/rsock"
)

// cpProgress is told how far a file has got.
type cpProgress interface {
	begin(offset, size int64) // anew when a connection broke
	at(offset int64)
	end()
}

// cpPause is how long to wait before another try.
const cpPause = 500 * time.Millisecond

// copy copies a file, on one connection after the other if they break.
func (c *cpCmd) copy(ctx context.Context, t transfer) error {
	root, err := os.OpenRoot(t.dir)
	if err != nil {
		return err
	}
	defer root.Close()
	var progress cpProgress = noProgress{}
	if !c.Quiet && (c.Progress || term.IsTerminal(int(os.Stderr.Fd()))) {
		progress = &cpBar{name: t.local}
	}
	begun, far, told := time.Now(), int64(-1), false
	client := &cpClient{root: root, transfer: t, progress: progress}
	for {
		err := client.attempt(ctx)
		if err == nil {
			break
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if client.far > far {
			far, begun, told = client.far, time.Now(), false
		}
		if !client.spoken || permanent(err) || time.Since(begun) > c.Retry {
			return err
		}
		if !c.Quiet && !told {
			fmt.Fprintf(os.Stderr, "\n%v; trying again\n", err)
		}
		told = true
		select {
		case <-time.After(cpPause):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	progress.end()
	if !c.Quiet {
		fmt.Printf("%s  %s  %d bytes\n", client.sum, t.local, client.far)
	}
	return nil
}

// permanent says whether another try would fail as well.
func permanent(err error) bool {
	_, file := errors.AsType[fileError](err)
	denied, ok := errors.AsType[denial](err)
	// The server may not have seen yet that the last connection broke.
	return file || ok && !denied.busy || errors.Is(err, errSum)
}

// cpClient copies one file.
type cpClient struct {
	transfer
	root     *os.Root
	progress cpProgress
	spoken   bool  // there is a server
	far      int64 // how much of it is there
	sum      string
}

// attempt copies what is missing, on one connection.
func (c *cpClient) attempt(ctx context.Context) error {
	d := rsock.Dialer{}
	conn, err := d.DialContext(ctx, "rdma", c.addr)
	if err != nil {
		return err
	}
	defer context.AfterFunc(ctx, func() { breakOff(conn) })()
	return c.over(conn)
}

// breakOff closes a connection and waits for nothing.
func breakOff(conn net.Conn) {
	if r, ok := conn.(*rsock.Conn); ok {
		r.SetLinger(0)
	}
	conn.Close()
}

// over is attempt on a connection, which it closes.
func (c *cpClient) over(conn net.Conn) error {
	defer conn.Close()
	if c.put {
		return c.send(newCPConn(conn))
	}
	return c.receive(newCPConn(conn))
}

func (c *cpClient) moved(offset int64) {
	c.far = max(c.far, offset)
	c.progress.at(offset)
}

func (c *cpClient) send(conn *cpConn) error {
	f, info, err := openSource(c.root, c.local)
	if err != nil {
		return err
	}
	defer f.Close()
	if err := conn.say(cpMessage{Version: cpVersion, Op: "put", Name: c.remote, Size: info.Size(), Mode: uint32(info.Mode().Perm())}); err != nil {
		return err
	}
	has, err := conn.hear()
	if err != nil {
		return err
	}
	c.spoken = true
	offset, sum, err := agree(f, info.Size(), has)
	if err != nil {
		return err
	}
	if err := conn.say(cpMessage{Offset: offset}); err != nil {
		return err
	}
	c.progress.begin(offset, info.Size())
	if err := conn.sendFile(f, offset, info.Size(), sum, c.moved); err != nil {
		if _, ok := err.(fileError); ok {
			return err
		}
		// The server may have said why it went.
		if _, said := conn.hear(); permanent(said) {
			return said
		}
		return err
	}
	end, err := conn.hear()
	c.sum = end.Sum
	return err
}

func (c *cpClient) receive(conn *cpConn) error {
	p, err := openPartial(c.root, c.local)
	if err != nil {
		return err
	}
	defer p.Close()
	has, sum, err := p.has()
	if err != nil {
		return err
	}
	ask := has
	ask.Version, ask.Op, ask.Name = cpVersion, "get", c.remote
	if err := conn.say(ask); err != nil {
		return err
	}
	agreed, err := conn.hear()
	if err != nil {
		if has.Offset == 0 { // there is no such file: leave nothing
			if _, refused := err.(denial); refused {
				c.root.Remove(partName(c.local))
			}
		}
		return err
	}
	c.spoken = true
	if err = has.accepts(agreed); err == nil {
		c.progress.begin(agreed.Offset, agreed.Size)
		c.moved(agreed.Offset)
		c.sum, err = p.take(conn, has, agreed, sum, c.moved)
	}
	if err != nil {
		if permanent(err) {
			conn.say(cpMessage{Error: err.Error()})
		}
		return err
	}
	conn.say(cpMessage{Sum: c.sum}) // what becomes of this changes nothing
	return nil
}

type noProgress struct{}

func (noProgress) begin(int64, int64) {}
func (noProgress) at(int64)           {}
func (noProgress) end()               {}

// cpBar draws a bar on the standard error, with rate and time left.
type cpBar struct {
	name string
	bar  *progressbar.ProgressBar
}

func (b *cpBar) begin(offset, size int64) {
	if b.bar != nil {
		b.bar.Exit()
	}
	b.bar = progressbar.NewOptions64(size,
		progressbar.OptionSetDescription(b.name),
		progressbar.OptionSetWriter(os.Stderr),
		progressbar.OptionShowBytes(true),
		progressbar.OptionShowTotalBytes(true),
		progressbar.OptionUseIECUnits(true),
		progressbar.OptionSetPredictTime(true),
		progressbar.OptionThrottle(100*time.Millisecond),
		progressbar.OptionSetWidth(20),
		progressbar.OptionFullWidth(),
		progressbar.OptionSetRenderBlankState(true),
	)
	b.bar.Set64(offset)
}

func (b *cpBar) at(offset int64) { b.bar.Set64(offset) }

func (b *cpBar) end() {
	b.bar.Finish()
	fmt.Fprintln(os.Stderr)
}
