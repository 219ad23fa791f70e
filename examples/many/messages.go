package main

import (
	"context"
	"sync"
	"time"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/cm"
	"github.com/goverbs/verbs/uverbs"
)

const room = 64 // bytes of a message

// hub has the objects that all connections of one side share. A receive's ID is its slot, and so is
// that of the answer: the slot is posted again when the answer is sent, so a hub with n receives has
// at most n completions at a time.
type hub struct {
	pd  *uverbs.PD
	cq  *uverbs.CQ
	srq *uverbs.SRQ
	mr  *uverbs.MR

	mu    sync.Mutex
	conns map[uint32]*conn // by QP number
}

type conn struct {
	*cm.Endpoint
	answers chan string // of a client
}

func newHub(dev *uverbs.Context, receives int) (*hub, error) {
	h := &hub{conns: map[uint32]*conn{}}
	var err error
	if h.pd, err = dev.AllocPD(); err != nil {
		return nil, err
	}
	ch, err := dev.CreateCompChannel()
	if err != nil {
		return nil, err
	}
	if h.cq, err = dev.CreateCQ(uverbs.CQOptions{Depth: receives, Channel: ch}); err != nil {
		return nil, err
	}
	if h.mr, err = h.pd.AllocMR(receives*room, verbs.AccessLocalWrite, uverbs.MROptions{}); err != nil {
		return nil, err
	}
	if h.srq, err = h.pd.CreateSRQ(uverbs.SRQOptions{MaxWR: receives, MaxSGE: 1}); err != nil {
		return nil, err
	}
	for slot := range receives {
		if err := h.post(uint64(slot)); err != nil {
			return nil, err
		}
	}
	return h, nil
}

func (h *hub) post(slot uint64) error {
	_, err := h.srq.PostRecv(verbs.RecvWR{ID: slot, SGL: []verbs.SGE{h.mr.SGE(int(slot)*room, room)}})
	return err
}

// options are those of a connection: a send queue of two requests is all that it has for itself.
func (h *hub) options(c *conn) cm.Options {
	return cm.Options{
		PD: h.pd, SRQ: h.srq, SendCQ: h.cq, RecvCQ: h.cq,
		Cap: verbs.QPCap{MaxSendWR: 2, MaxInline: room},
		Setup: func(e *cm.Endpoint) error { // before the first message
			h.mu.Lock()
			defer h.mu.Unlock()
			c.Endpoint, h.conns[e.QP.Num()] = e, c
			return nil
		},
	}
}

// run handles the completions of all connections.
func (h *hub) run(ctx context.Context) error {
	var wcs [16]verbs.WC
	for {
		n, err := h.cq.PollWait(ctx, wcs[:])
		if err != nil {
			return err
		}
		for _, wc := range wcs[:n] {
			h.mu.Lock()
			c := h.conns[wc.QPNum]
			h.mu.Unlock()
			switch {
			case c == nil: // removed
			case wc.Status != verbs.WCSuccess:
				c.Disconnect()
			case wc.Opcode == verbs.WCRecv:
				text := h.mr.Bytes()[int(wc.ID)*room:][:wc.ByteLen]
				if c.answers == nil { // a server's: the slot is posted when this has been sent
					if c.send(wc.ID, text) == nil {
						continue
					}
				} else {
					select {
					case c.answers <- string(text):
					default: // nobody has asked for another: this goroutine must not wait
						c.Disconnect()
					}
				}
			}
			if wc.ID != question {
				if err := h.post(wc.ID); err != nil {
					return err
				}
			}
		}
	}
}

// question is the ID of requests, which have no slot.
const question = 1 << 63

func (c *conn) send(id uint64, text []byte) error {
	_, err := c.QP.PostSend(verbs.SendWR{ID: id, Opcode: verbs.OpSend, Flags: verbs.SendSignaled, Inline: text})
	return err
}

// messages is a server of messages, and its clients.
type messages struct {
	listeners       []*cm.Listener
	server, clients *hub
}

// perListener is less than the ports that Linux chooses from for clients of one address to one port
// (net.ipv4.ip_local_port_range). A server of clients on other machines needs one listener only.
const perListener = 20_000

// newMessages makes a server with two receives for each of at clients that ask at a time: one may
// ask again before the server knows that the last answer was sent.
func newMessages(ctx context.Context, dev *uverbs.Context, addr string, conns, at int) (m *messages, err error) {
	m = new(messages)
	if m.server, err = newHub(dev, 2*at); err != nil {
		return nil, err
	}
	// The questions of clients complete as well, at times after their answers.
	if m.clients, err = newHub(dev, 4*at); err != nil {
		return nil, err
	}
	go m.server.run(ctx)
	go m.clients.run(ctx)
	for range (conns + perListener - 1) / perListener {
		l, err := (&cm.ListenConfig{Backlog: conns, MaxConns: -1}).Listen(ctx, addr)
		if err != nil {
			return nil, err
		}
		m.listeners = append(m.listeners, l)
		go m.serve(ctx, l)
	}
	return m, nil
}

func (m *messages) serve(ctx context.Context, l *cm.Listener) {
	for {
		req, err := l.Accept(ctx)
		if err != nil {
			return
		}
		go func() {
			c := new(conn)
			if _, err := req.Accept(ctx, m.server.options(c)); err == nil {
				<-c.Done()
				m.server.remove(c)
			}
		}()
	}
}

func (m *messages) dial(ctx context.Context, i int) (func(context.Context) error, error) {
	c := &conn{answers: make(chan string, 1)}
	d := cm.Dialer{Options: m.clients.options(c), ResolveTimeout: time.Minute, ConnectTimeout: -1}
	if _, err := d.Dial(ctx, m.listeners[i/perListener].Addr().String()); err != nil {
		return nil, err
	}
	return func(ctx context.Context) error {
		if err := c.send(question, []byte("hello")); err != nil {
			return err
		}
		select {
		case answer := <-c.answers:
			if answer != "hello" {
				return errAnswer
			}
			return nil
		case <-c.Done():
			return c.Err()
		case <-ctx.Done():
			return ctx.Err()
		}
	}, nil
}

// remove closes a connection that has ended.
func (h *hub) remove(c *conn) error {
	h.mu.Lock()
	delete(h.conns, c.QP.Num())
	h.mu.Unlock()
	return c.Close()
}

func (m *messages) close(ctx context.Context) error {
	m.clients.mu.Lock()
	var all []*conn
	for _, c := range m.clients.conns {
		all = append(all, c)
	}
	m.clients.mu.Unlock()
	for i, c := range all {
		// The transport repeats the message that tells a peer of the end, for 64 connections at a time
		// and a second of each that waits: without a pause many peers could miss it.
		for i%64 == 0 && cm.DefaultTransport().Stats().Leaving >= 64 {
			time.Sleep(10 * time.Millisecond)
		}
		if err := m.clients.remove(c); err != nil {
			return err
		}
	}
	for _, l := range m.listeners {
		if err := l.Shutdown(ctx); err != nil {
			return err
		}
	}
	return nil
}
