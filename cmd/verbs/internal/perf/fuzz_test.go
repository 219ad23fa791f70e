package perf

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"io"
	"net"
	"testing"
	"time"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/cm"
	"github.com/goverbs/verbs/cmd/verbs/internal/cli"
)

// readConn is a connection to a peer that has sent all its data.
type readConn struct {
	net.Conn
	in io.Reader
}

func (c readConn) Read(b []byte) (int, error) { return c.in.Read(b) }

// FuzzControl sends arbitrary data on the control connection: the result is a message, or an
// error that names the side at fault; work that passes validation is within the limits and
// fits into memory.
func FuzzControl(f *testing.F) {
	good := work{Version: version, Op: "write", Mode: modeBW, Size: 64, Iters: 5, QPs: 2, TxDepth: 16, RxDepth: 16, List: 4, CQMod: 4, Timeout: time.Second}
	for _, m := range []message{
		{Work: &good}, {Offer: &offer{Port: 1, Token: 2}}, {Start: &start{Addr: 1 << 63, Len: -1}},
		{Done: &done{5}}, {Report: &report{Seconds: 1}}, {Fault: &fault{"no", true}},
	} {
		line, err := json.Marshal(m)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(append(line, '\n'))
	}
	for op := range operations {
		w := good
		w.Op, w.Size = op, 8
		line, _ := json.Marshal(message{Work: &w})
		f.Add(append(line, line...))
	}
	f.Add([]byte(`{"work":{"version":1,"op":"send","mode":"bw","size":8388608,"iters":1,"qps":9223372036854775807}}` + "\n\n{}\nnull\n[]\n"))
	f.Fuzz(func(t *testing.T, b []byte) {
		c := newControl(readConn{in: bytes.NewReader(b)})
		for {
			m, err := c.receive(context.Background())
			_, fault := errors.AsType[*fault](err)
			switch {
			case errors.Is(err, io.EOF):
				return
			case fault, errors.Is(err, cli.ErrProtocol):
				continue // the callers end here; the rest may be read just the same
			case err != nil:
				if len(b) < cli.LongestLine {
					t.Fatal(err)
				}
				return
			}
			if m.Work == nil || m.Work.validate() != nil {
				continue
			}
			w := m.Work
			l, limits := w.layout(), w.cap()
			end := l.inOf(w.QPs-1) + l.head + w.Size
			if l.total <= 0 || l.total > maxMemory || l.in < w.Size || l.stride < l.head+w.Size || end > l.total || l.inOf(w.QPs-1) < 0 {
				t.Fatalf("%+v has layout %+v", w, l)
			}
			if limits.MaxSendWR == 0 || limits.MaxSendWR > maxDepth+creditSends || limits.MaxRecvWR == 0 || limits.MaxRecvWR > 4*maxDepth {
				t.Fatalf("%+v has queues %+v", w, limits)
			}
			if w.operation().opcode == verbs.OpSend && !w.operation().receives || w.quantum() < 1 || w.quantum() > w.RxDepth {
				t.Fatalf("%+v has a credit for %d", w, w.quantum())
			}
		}
	})
}

// FuzzQueue connects with arbitrary private data: only a client with the token gets a queue,
// the queue exists, and it is not in use.
func FuzzQueue(f *testing.F) {
	f.Add([]byte{0, 0, 0, 9, 0, 1}, uint32(9), uint8(2), uint8(0))
	f.Add([]byte{0, 0, 0, 9, 0, 1}, uint32(9), uint8(2), uint8(1))
	f.Add([]byte{0, 0, 0, 9, 0xff, 0xff}, uint32(9), uint8(2), uint8(0))
	f.Add([]byte{0, 0, 0, 9, 0}, uint32(9), uint8(2), uint8(0))
	f.Add(make([]byte, 56), uint32(1), uint8(1), uint8(0)) // padded as on RoCE
	f.Fuzz(func(t *testing.T, private []byte, token uint32, queues, taken uint8) {
		s := &session{token: token}
		for range queues {
			s.queues = append(s.queues, new(queue))
		}
		if int(taken) < len(s.queues) {
			s.queues[taken].ep = new(cm.Endpoint)
		}
		i, ours, err := s.queueOf(private)
		known := len(private) >= 4 && binary.BigEndian.Uint32(private) == token
		switch {
		case ours && !known:
			t.Errorf("%x has no token %d", private, token)
		case err != nil && !errors.Is(err, cli.ErrProtocol):
			t.Error(err)
		case ours && err == nil && (i >= len(s.queues) || s.queues[i].ep != nil):
			t.Errorf("%x has queue %d", private, i)
		}
	})
}
