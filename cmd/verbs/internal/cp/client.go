package cp

import (
	"context"
	"fmt"
	"net"
	"os"
	"time"

	"github.com/schollz/progressbar/v3"
	"golang.org/x/term"

	"github.com/goverbs/verbs/rsock"
)

// retryDelay is the time to wait before a retry.
const retryDelay = 500 * time.Millisecond

// copy copies a file and makes another connection if one breaks.
func (c *Cmd) copy(ctx context.Context, t transfer) error {
	root, err := os.OpenRoot(t.dir)
	if err != nil {
		return err
	}
	defer root.Close()
	bar := bar{name: t.local}
	show := !c.Quiet && (c.Progress || term.IsTerminal(int(os.Stderr.Fd())))
	remoteOffset := int64(-1) // bytes that are there; -1 until a server has answered
	advanced, warned := time.Now(), false
	at := func(offset, size int64) {
		if offset > remoteOffset {
			remoteOffset, advanced, warned = offset, time.Now(), false
		}
		if show {
			bar.at(offset, size)
		}
	}
	for {
		done, err := t.attempt(ctx, root, at)
		if err == nil {
			if show {
				bar.end()
			}
			if !c.Quiet {
				fmt.Printf("%s  %s  %d bytes\n", done.sum, t.local, done.size)
			}
			return nil
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if remoteOffset < 0 || !temporary(err) || time.Since(advanced) > c.Retry {
			return err
		}
		if !c.Quiet && !warned {
			fmt.Fprintf(os.Stderr, "\n%v; trying again\n", err)
		}
		warned = true
		select {
		case <-time.After(retryDelay):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// attempt copies the missing part of the file on one connection.
func (t *transfer) attempt(ctx context.Context, root *os.Root, at progress) (copied, error) {
	conn, err := new(rsock.Dialer).DialContext(ctx, "rdma", t.addr)
	if err != nil {
		return copied{}, connError{err}
	}
	defer context.AfterFunc(ctx, func() { abort(conn) })()
	return t.run(conn, root, at)
}

// abort closes a connection without waiting.
func abort(conn net.Conn) {
	if r, ok := conn.(*rsock.Conn); ok {
		r.SetLinger(0)
	}
	conn.Close()
}

// run copies the missing part on conn and closes it.
func (t *transfer) run(conn net.Conn, root *os.Root, at progress) (copied, error) {
	defer conn.Close()
	op := "get"
	if t.put {
		op = "put"
	}
	return newConn(conn).transfer(root, t.local, t.put, &message{Version: version, Op: op, Name: t.remote}, at)
}

// bar is a progress bar on the standard error, with rate and time left.
type bar struct {
	name string
	*progressbar.ProgressBar
}

func (b *bar) at(offset, size int64) {
	if b.ProgressBar == nil || b.GetMax64() != size {
		b.ProgressBar = progressbar.NewOptions64(size,
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
	}
	b.Set64(offset)
}

func (b *bar) end() {
	b.Finish()
	fmt.Fprintln(os.Stderr)
}
