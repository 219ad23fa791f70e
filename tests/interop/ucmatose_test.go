package interop

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strconv"
	"testing"
	"time"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/cm"
	"github.com/goverbs/verbs/internal/labtest"
	"github.com/goverbs/verbs/uverbs"
)

// ucmatose implements the protocol of ucmatose. When all connections are established, the
// server sends its messages on each; when the client has received all, it sends as many;
// when the server has received these, it disconnects.
//
// C's program has one buffer per connection for all messages in both directions, so its
// client sends back what the server sent.
type ucmatose struct {
	connections, messages, size int
}

// ucmatoseConn is one of the connections.
type ucmatoseConn struct {
	ucmatose
	*cm.Endpoint
	in, out *uverbs.MR
}

func (c ucmatose) options(n *ucmatoseConn) cm.Options {
	queue := max(c.messages, 1)
	return cm.Options{
		Cap:                verbs.QPCap{MaxSendWR: queue, MaxRecvWR: queue, MaxSendSGE: 1, MaxRecvSGE: 1},
		ResponderResources: 1,
		InitiatorDepth:     1,
		Setup: func(e *cm.Endpoint) (err error) {
			n.ucmatose, n.Endpoint = c, e
			if c.messages == 0 {
				return nil
			}
			if n.in, err = e.AllocMR(c.messages*c.size, verbs.AccessLocalWrite); err != nil {
				return err
			}
			if n.out, err = e.AllocMR(c.size, 0); err != nil {
				return err
			}
			for i := range c.messages {
				if _, err := e.QP.PostRecv(verbs.RecvWR{ID: uint64(i), SGL: []verbs.SGE{n.in.SGE(i*c.size, c.size)}}); err != nil {
					return err
				}
			}
			return nil
		},
	}
}

// fill fills the message of a connection.
func (n *ucmatoseConn) fill(connection int) {
	if n.messages == 0 {
		return
	}
	for i := range n.out.Bytes() {
		n.out.Bytes()[i] = byte(connection + 3*i)
	}
}

// checkECE checks that the connection uses the extensions of both adapters: C's program, whose QP
// librdmacm makes, offers and answers with those that its adapter has.
func (n *ucmatoseConn) checkECE() error {
	want := verbs.ECE{}
	if n.PD.Context().Driver() == "mlx5" {
		want = verbs.ECE{VendorID: 0x15b3, Options: 0x10000005}
	}
	if got := n.QP.ECE(); got != want {
		return fmt.Errorf("the extensions are %+v, not %+v", got, want)
	}
	return nil
}

func (n *ucmatoseConn) send(ctx context.Context) error {
	if n.messages == 0 {
		return nil
	}
	wr := []verbs.SendWR{{Opcode: verbs.OpSend, Flags: verbs.SendSignaled, SGL: []verbs.SGE{n.out.SGE(0, n.size)}}}
	for range n.messages {
		if _, err := n.QP.PostSend(wr...); err != nil {
			return err
		}
	}
	return n.complete(ctx, n.SendCQ)
}

// complete waits for the completions of all messages in one direction.
func (n *ucmatoseConn) complete(ctx context.Context, cq *uverbs.CQ) error {
	var wc [1]verbs.WC
	for range n.messages {
		if _, err := cq.PollWait(ctx, wc[:]); err != nil {
			return err
		}
		if err := wc[0].Err(); err != nil {
			return err
		}
		if cq == n.RecvCQ && int(wc[0].ByteLen) != n.size {
			return fmt.Errorf("message of %d bytes, not %d", wc[0].ByteLen, n.size)
		}
	}
	return nil
}

// echoMatches reports whether all received messages are equal to the sent ones.
func (n *ucmatoseConn) echoMatches() bool {
	return n.messages == 0 || bytes.Equal(n.in.Bytes(), bytes.Repeat(n.out.Bytes(), n.messages))
}

// waitDisconnect waits for the peer to disconnect.
func (n *ucmatoseConn) waitDisconnect(ctx context.Context) error {
	select {
	case <-n.Done():
	case <-ctx.Done():
		return ctx.Err()
	}
	if err := n.Err(); !errors.Is(err, verbs.ErrDisconnected) {
		return err
	}
	return nil
}

// forEachConn calls do for all connections concurrently.
func forEachConn[T any](nodes []T, do func(i int, n T) error) error {
	errs := make(chan error, len(nodes))
	for i, n := range nodes {
		go func() {
			err := do(i, n)
			if err != nil {
				err = fmt.Errorf("connection %d: %w", i, err)
			}
			errs <- err
		}()
	}
	var err error
	for range nodes {
		err = errors.Join(err, <-errs)
	}
	return err
}

func (c ucmatose) newConns() []*ucmatoseConn {
	nodes := make([]*ucmatoseConn, c.connections)
	for i := range nodes {
		nodes[i] = new(ucmatoseConn)
	}
	return nodes
}

// closeUcmatoseConns closes the connections that were made.
func closeUcmatoseConns(nodes []*ucmatoseConn) (err error) {
	for _, n := range nodes {
		if n.Endpoint != nil {
			err = errors.Join(err, n.Close())
		}
	}
	return err
}

func (c ucmatose) serve(ctx context.Context, l *cm.Listener) (err error) {
	nodes := c.newConns()
	defer func() { err = errors.Join(err, closeUcmatoseConns(nodes)) }()
	requests := make([]*cm.Request, c.connections)
	for i := range requests {
		if requests[i], err = l.Accept(ctx); err != nil {
			return err
		}
	}
	accept := func(i int, r *cm.Request) error {
		if _, err := r.Accept(ctx, c.options(nodes[i])); err != nil {
			return err
		}
		return nodes[i].checkECE()
	}
	if err := forEachConn(requests, accept); err != nil {
		return err
	}
	return forEachConn(nodes, func(i int, n *ucmatoseConn) error {
		n.fill(i)
		if err := n.send(ctx); err != nil {
			return err
		}
		if err := n.complete(ctx, n.RecvCQ); err != nil {
			return err
		}
		if !n.echoMatches() {
			return errors.New("the answers are not what was sent")
		}
		n.Disconnect()
		return nil
	})
}

func (c ucmatose) join(ctx context.Context, addr string) (err error) {
	nodes := c.newConns()
	defer func() { err = errors.Join(err, closeUcmatoseConns(nodes)) }()
	dial := func(_ int, n *ucmatoseConn) error {
		d := cm.Dialer{Options: c.options(n)}
		if _, err := d.Dial(ctx, addr); err != nil {
			return err
		}
		return n.checkECE()
	}
	if err := forEachConn(nodes, dial); err != nil {
		return err
	}
	return forEachConn(nodes, func(i int, n *ucmatoseConn) error {
		if err := n.complete(ctx, n.RecvCQ); err != nil {
			return err
		}
		n.fill(i)
		// C's server ends a connection when it has polled the last message,
		// possibly before its driver has acknowledged it, or before siw here has
		// completed the send.
		if err := n.send(ctx); err != nil && !errors.Is(err, verbs.WCFlushErr) && !errors.Is(err, verbs.WCLocQPOpErr) {
			return err
		}
		return n.waitDisconnect(ctx)
	})
}

// args returns the arguments of C's program.
func (c ucmatose) args(port, role, addr string) []string {
	return []string{role, addr, "-p", port, "-c", strconv.Itoa(c.connections), "-C", strconv.Itoa(c.messages), "-S", strconv.Itoa(c.size)}
}

// TestUcmatose makes many connections with rdma-core's ucmatose and exchanges
// messages on all of them.
func TestUcmatose(t *testing.T) {
	labtest.RequireKernel(t)
	labtest.Each(t, func(t *testing.T, device string) {
		many := ucmatose{connections: 50, messages: 10, size: 100}
		if labtest.Driver(t, device) == "siw" {
			many.connections = 36 // rdma-core's siw fails at the 145th mapping, and each connection has four
		}
		for i, c := range labtest.Few(2, []ucmatose{
			{connections: 1, messages: 10, size: 100},
			{connections: 3, messages: 100, size: 20000},
			many,
			{connections: 10, messages: 1, size: 1},
			{connections: 5, messages: 0},
		}) {
			port := strconv.Itoa(7400 + i)
			addr := labtest.AddrOf(device) + ":" + port
			t.Run(fmt.Sprintf("Go server/%+v", c), func(t *testing.T) {
				ctx := timeLimit(t)
				l := labtest.Made(cm.Listen(ctx, addr))(t)
				client := start(t, "ucmatose", c.args(port, "-s", labtest.AddrOf(device))...)
				if err := c.serve(ctx, l); err != nil {
					t.Error(err)
				}
				client.Wait()
			})
			t.Run(fmt.Sprintf("Go client/%+v", c), func(t *testing.T) {
				err := retryErrMPA(t, func() error {
					server := start(t, "ucmatose", c.args(port, "-b", labtest.AddrOf(device))...)
					labtest.WaitListening(t, port)
					if err := c.join(timeLimit(t), addr); err != nil {
						<-server.Done
						return err
					}
					server.Wait()
					return nil
				})
				if err != nil {
					t.Error(err)
				}
			})
		}
	})
}

// timeLimit returns a context for operations that take a few seconds.
func timeLimit(t *testing.T) context.Context {
	return labtest.Within(t, 100*time.Second)
}
