//go:build linux

package machine

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"

	"github.com/goverbs/verbs/lab/internal/image"
	"github.com/goverbs/verbs/lab/internal/job"
)

// RunPair runs t on k, and at the same time on other as the peer. The run ends with the first machine.
// If the peer's kernel goes down, it is booted again; if its program ends, it is not.
func RunPair(ctx context.Context, k, other image.Kernel, t Task, opt Options, std Stdio) (int, error) {
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	net, err := newNetwork(len(job.Wires) + len(opt.links()))
	if err != nil {
		return job.ExitLab, err
	}
	defer net.close()
	ended := errors.New("the first machine has ended")
	peer := make(chan error, 1)
	go func() {
		log := &prefixWriter{w: std.Err, prefix: "peer: "}
		err := runPeer(ctx, other, t.onMachine(peerMachine, other, k, opt.NICs), opt.on(net, peerMachine), Stdio{In: strings.NewReader(""), Out: log, Err: log})
		if errors.Is(err, ended) && !errors.Is(err, errWarned) {
			err = nil
		}
		if err != nil {
			err = fmt.Errorf("peer: %w", err)
			stop(err)
		}
		peer <- err
	}()
	code, err := RunAlone(ctx, k, t.onMachine(firstMachine, k, other, opt.NICs), opt.on(net, firstMachine), std)
	stop(ended)
	if perr := <-peer; perr != nil {
		if !errors.Is(err, perr) {
			err = errors.Join(err, perr)
		}
		if code == 0 {
			code = job.ExitLab
		}
	}
	return code, err
}

// runPeer keeps the peer running until its program or ctx ends.
func runPeer(ctx context.Context, k image.Kernel, t Task, opt Options, std Stdio) error {
	for {
		code, err := RunAlone(ctx, k, t, opt, std)
		switch {
		case errors.Is(err, ErrDown) && !errors.Is(err, errWarned) && ctx.Err() == nil:
			fmt.Fprintln(std.Err, "went down, and is booted again")
		case err != nil:
			return err
		case code != 0:
			return fmt.Errorf("its program ended with status %d", code)
		default:
			return nil
		}
	}
}

const maxLine = 64 << 10 // longer lines are written in parts

// prefixWriter writes lines with a prefix.
type prefixWriter struct {
	w      io.Writer
	prefix string

	mu   sync.Mutex
	line []byte
}

func (p *prefixWriter) Write(b []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.line = append(p.line, b...)
	for {
		i := bytes.IndexByte(p.line, '\n')
		if i < 0 && len(p.line) < maxLine {
			return len(b), nil
		} else if i < 0 {
			i = len(p.line) - 1
		}
		if _, err := fmt.Fprintf(p.w, "%s%s", p.prefix, p.line[:i+1]); err != nil {
			return 0, err
		}
		p.line = append(p.line[:0], p.line[i+1:]...)
	}
}
