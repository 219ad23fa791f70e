package ping

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/cm"
	"github.com/goverbs/verbs/cmd/verbs/internal/cli"
	"github.com/goverbs/verbs/uverbs"
)

// manual is a connection whose QP is made and moved from state to state here, as by
// rping -q: the connection manager carries messages and returns the attributes of the
// QP's next state, and no more.
type manual struct {
	id      *cm.ID
	route   cm.Route
	pd      *uverbs.PD
	qp      *uverbs.QP
	objects cli.Closers

	ended   context.Context // its cause is why the connection ended
	end     context.CancelCauseFunc
	watcher sync.WaitGroup
}

// newManual makes what p needs on the device that id leads to. It takes over id, and what is
// to be closed after it, also when it fails.
func newManual(id *cm.ID, p *peer, after ...io.Closer) (*manual, error) {
	m := &manual{id: id, objects: after}
	m.ended, m.end = context.WithCancelCause(context.Background())
	if err := m.setUp(p); err != nil {
		m.Close()
		return nil, err
	}
	return m, nil
}

func (m *manual) setUp(p *peer) (err error) {
	if m.route, err = m.id.Route(); err != nil {
		return err
	}
	device, err := m.route.FindDevice()
	if err != nil {
		return err
	}
	dev, err := cli.Own(device.Open())(&m.objects)
	if err != nil {
		return err
	}
	if m.pd, err = cli.Own(dev.AllocPD())(&m.objects); err != nil {
		return err
	}
	cq := uverbs.CQOptions{Depth: queues.MaxSendWR + 1}
	if cq.Channel, err = cli.Own(dev.CreateCompChannel())(&m.objects); err != nil {
		return err
	}
	opt := uverbs.QPOptions{Type: verbs.RC, Cap: queues}
	for _, q := range []**uverbs.CQ{&opt.SendCQ, &opt.RecvCQ} {
		if *q, err = cli.Own(dev.CreateCQ(cq))(&m.objects); err != nil {
			return err
		}
	}
	if m.qp, err = cli.Own(m.pd.CreateQP(opt))(&m.objects); err != nil {
		return err
	}
	if err := m.modify(verbs.StateInit); err != nil {
		return err
	}
	return p.setup(m, m.qp)
}

// modify moves the QP to states, with the connection manager's attributes.
func (m *manual) modify(states ...verbs.QPState) error {
	for _, state := range states {
		attr, mask, err := m.id.InitQPAttr(state)
		if err == nil {
			err = m.qp.Modify(attr, mask)
		}
		if err != nil {
			return fmt.Errorf("move QP to %v: %w", state, err)
		}
	}
	return nil
}

// activate moves the QP to RTS. It is in INIT already, but only now does the connection
// manager know what the peer may do, so it goes there again.
func (m *manual) activate() error {
	return m.modify(verbs.StateInit, verbs.StateRTR, verbs.StateRTS)
}

func (m *manual) param() cm.ConnParam {
	return cm.ConnParam{QPNum: m.qp.Num(), ResponderResources: 1, InitiatorDepth: 1, RetryCount: 7, RNRRetryCount: 7}
}

// watch waits for the end of the connection, and then takes the QP out of service, which
// flushes what was posted.
func (m *manual) watch() {
	m.watcher.Go(func() {
		_, err := await(m.ended, m.id)
		m.end(err)
		m.qp.Modify(verbs.QPAttr{State: verbs.StateErr}, verbs.MaskState)
		m.id.Disconnect()
	})
}

func (m *manual) Done() <-chan struct{} { return m.ended.Done() }

func (m *manual) Err() error {
	<-m.ended.Done()
	return context.Cause(m.ended)
}

func (m *manual) LocalAddr() cm.Addr  { return cm.Addr{AddrPort: m.route.Local} }
func (m *manual) RemoteAddr() cm.Addr { return cm.Addr{AddrPort: m.route.Remote} }

func (m *manual) AllocMR(size int, access verbs.Access) (*uverbs.MR, error) {
	return cli.Own(m.pd.AllocMR(size, access, uverbs.MROptions{}))(&m.objects)
}

// Close disconnects and releases everything, the ID before the QP.
func (m *manual) Close() error {
	m.end(verbs.ErrClosed)
	m.watcher.Wait()
	return errors.Join(m.id.Close(), m.objects.Close())
}

// dialByHand connects p.
func dialByHand(ctx context.Context, p *peer, source netip.AddrPort, addr string) error {
	m, err := routeByHand(ctx, p, source, addr)
	if err == nil {
		err = m.connect(ctx)
	}
	if err != nil {
		return fmt.Errorf("dial %s: %w", addr, err)
	}
	m.watch()
	return nil
}

// routeByHand finds the device and makes the QP.
func routeByHand(ctx context.Context, p *peer, source netip.AddrPort, addr string) (_ *manual, err error) {
	const timeout = 2 * time.Second // rping's
	dst, err := resolve(addr)
	if err != nil {
		return nil, err
	}
	ch, err := cm.NewChannel()
	if err != nil {
		return nil, err
	}
	id, err := ch.NewID()
	if err == nil {
		err = id.ResolveAddr(source, dst, timeout)
	}
	if err == nil {
		_, err = await(ctx, id, cm.AddrResolved)
	}
	if err == nil {
		err = id.ResolveRoute(timeout)
	}
	if err == nil {
		_, err = await(ctx, id, cm.RouteResolved)
	}
	if err != nil {
		ch.Close() // and the ID
		return nil, err
	}
	return newManual(id, p, ch)
}

// connect does the handshake. siw's kernel side waits for the peer without a context: if ctx
// ends first, all is closed when the kernel returns.
func (m *manual) connect(ctx context.Context) error {
	shaken := make(chan error, 1)
	go func() { shaken <- m.handshake(ctx) }()
	select {
	case err := <-shaken:
		if err != nil {
			m.Close()
		}
		return err
	case <-ctx.Done():
		go func() {
			<-shaken
			m.Close()
		}()
		return context.Cause(ctx)
	}
}

func (m *manual) handshake(ctx context.Context) error {
	if err := m.id.Connect(m.param()); err != nil {
		return err
	}
	e, err := await(ctx, m.id, cm.ConnectResponse, cm.Established)
	if err != nil {
		return err
	}
	if e.Type == cm.Established { // by iWARP, whose QP is in RTS
		return nil
	}
	if err := m.activate(); err != nil {
		return err
	}
	return m.id.Establish()
}

// await waits for an event of one of the types.
func await(ctx context.Context, id *cm.ID, want ...cm.EventType) (cm.Event, error) {
	for {
		e, err := id.Next(ctx)
		switch {
		case err != nil:
			return e, err
		case slices.Contains(want, e.Type):
			return e, nil
		}
		if err := e.Err(); err != nil {
			return e, err
		}
	}
}

// resolve looks up host:port.
func resolve(addr string) (netip.AddrPort, error) {
	a, err := net.ResolveTCPAddr("tcp", addr)
	if err != nil {
		return netip.AddrPort{}, err
	}
	return netip.AddrPortFrom(a.AddrPort().Addr().Unmap(), uint16(a.Port)), nil
}

// manualListener takes requests by an ID of its own. Connections share its channel, so it
// is closed after them.
type manualListener struct {
	ch   *cm.Channel
	id   *cm.ID
	addr cm.Addr
}

func listenByHand(addr string) (_ listener, err error) {
	local, err := resolve(addr)
	if err != nil {
		return nil, err
	}
	ch, err := cm.NewChannel()
	if err != nil {
		return nil, err
	}
	var route cm.Route
	id, err := ch.NewID()
	if err == nil {
		err = id.Bind(local)
	}
	if err == nil {
		err = id.Listen(128)
	}
	if err == nil {
		route, err = id.Route()
	}
	if err != nil {
		ch.Close()
		return nil, fmt.Errorf("listen on %v: %w", local, err)
	}
	return &manualListener{ch, id, cm.Addr{AddrPort: route.Local}}, nil
}

func (l *manualListener) Addr() cm.Addr { return l.addr }

func (l *manualListener) next(ctx context.Context) (accept, error) {
	e, err := await(ctx, l.id, cm.ConnectRequest)
	return func(ctx context.Context, p *peer) error {
		m, err := newManual(e.NewID, p)
		if err != nil {
			return err
		}
		if err := m.accept(ctx); err != nil {
			m.Close()
			return fmt.Errorf("accept from %v: %w", m.RemoteAddr(), err)
		}
		m.watch()
		return nil
	}, err
}

// accept does the handshake.
func (m *manual) accept(ctx context.Context) error {
	if !m.qp.PD().Context().Device().IWARP() { // whose kernel side does it
		if err := m.activate(); err != nil {
			return err
		}
	}
	if err := m.id.Accept(m.param()); err != nil {
		return err
	}
	_, err := await(ctx, m.id, cm.Established)
	return err
}

// Close closes the channel, and with it the ID.
func (l *manualListener) Close() error { return l.ch.Close() }
