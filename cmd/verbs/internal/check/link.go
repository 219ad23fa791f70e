package check

import (
	"context"
	"fmt"
	"net"
	"time"

	"github.com/goverbs/verbs/cmd/verbs/internal/cli"
	"github.com/goverbs/verbs/internal/endpoint"
)

// message is a line of JSON between the two ends. What an end does not use at a step is zero.
type message struct {
	Hello    *machine `json:"hello,omitempty"`    // first, by both
	Scenario string   `json:"scenario,omitempty"` // which the active end begins
	Measure  bool     `json:"measure,omitempty"`  // the active end asks for a server of verbs perf
	End      *verdict `json:"end,omitempty"`      // the scenario has ended on this end
	endpoint.Address
}

// patience is how long an end waits for the other one: longer than that waits for a completion.
var patience = 3 * endpoint.Limit

// link is the connection on which the ends of a scenario agree about each step. The active end
// sends first, so that a pipe without a buffer is enough.
type link struct {
	cli.Lines[message]
	active  bool
	machine *machine // of the other end, if that is one of others
	peers   *verdict // of the scenario, once it has ended there
}

func newLink(conn net.Conn, active bool) *link {
	return &link{Lines: cli.NewLines[message](conn), active: active}
}

// cancelWith closes the connection when ctx ends.
func (l *link) cancelWith(ctx context.Context) (stop func() bool) {
	return context.AfterFunc(ctx, func() { l.Conn.Close() })
}

func (l *link) send(m message) error { return l.Send(m, patience) }

func (l *link) receive() (m message, err error) {
	l.Conn.SetReadDeadline(time.Now().Add(patience))
	return l.next()
}

// next is receive without a limit of time.
func (l *link) next() (m message, err error) {
	if m, err = l.Receive(); err != nil {
		return m, err
	}
	if m.End != nil {
		m.End.Error = cli.Printable(m.End.Error)
		l.peers = m.End
	}
	return m, nil
}

// swap sends a message and receives one, which is a point that both ends have reached. It fails if
// the scenario has ended on the other one.
func (l *link) swap(m message) (peer message, err error) {
	if l.peers != nil {
		return peer, endpoint.ErrEnded
	}
	if l.active {
		if err := l.send(m); err != nil {
			return peer, err
		}
	}
	if peer, err = l.receive(); err != nil {
		return peer, err
	}
	if l.peers != nil {
		return peer, endpoint.ErrEnded
	}
	if !l.active {
		err = l.send(m)
	}
	return peer, err
}

// swapAddress is swap in a scenario.
func (l *link) swapAddress(a endpoint.Address) (endpoint.Address, error) {
	m, err := l.swap(message{Address: a})
	return m.Address, err
}

// finish tells the other end how the scenario ended here, and returns how it ended there.
func (l *link) finish(mine verdict) (peers verdict, err error) {
	end, sent := message{End: &mine}, false
	if l.active || l.peers != nil {
		err, sent = l.send(end), true
	}
	for until := time.Now().Add(patience); err == nil && l.peers == nil; { // what was sent before the end is skipped
		if time.Now().After(until) {
			return peers, fmt.Errorf("the other end has not ended the scenario within %v", patience)
		}
		if _, err = l.receive(); err == nil && !sent {
			err, sent = l.send(end), true
		}
	}
	if err != nil {
		return peers, err
	}
	peers, l.peers = *l.peers, nil
	return peers, nil
}
