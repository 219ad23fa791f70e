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

// manual is a connection whose QP is created and modified here, as by rping -q: the
// connection manager only carries messages and returns the attributes of the QP's next
// state.
type manual struct {
	id      *cm.ID
	route   cm.Route
	pd      *uverbs.PD
	qp      *uverbs.QP
	objects cli.Closers

	ctx     context.Context // its cause is why the connection ended
	cancel  context.CancelCauseFunc
	watcher sync.WaitGroup
}

// newManual creates the objects that p needs on the device that id leads to. It takes over
// id and the objects that are to be closed after it, also when it fails.
func newManual(id *cm.ID, p *peer, after ...io.Closer) (*manual, error) {
	m := &manual{id: id, objects: after}
	m.ctx, m.cancel = context.WithCancelCause(context.Background())
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

// modify moves the QP through states, with attributes from the connection manager.
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

// activate moves the QP to RTS. It repeats INIT, because only now does the connection
// manager know the access rights of the peer.
func (m *manual) activate() error {
	return m.modify(verbs.StateInit, verbs.StateRTR, verbs.StateRTS)
}

func (m *manual) param() cm.ConnParam {
	return cm.ConnParam{QPNum: m.qp.Num(), ResponderResources: 1, InitiatorDepth: 1, RetryCount: 7, RNRRetryCount: 7}
}

// watch waits for the end of the connection and then moves the QP to the error state, which
// flushes the posted requests.
func (m *manual) watch() {
	m.watcher.Go(func() {
		_, err := await(m.ctx, m.id)
		m.cancel(err)
		m.qp.Modify(verbs.QPAttr{State: verbs.StateErr}, verbs.MaskState)
		m.id.Disconnect()
	})
}

func (m *manual) Done() <-chan struct{} { return m.ctx.Done() }

func (m *manual) Err() error {
	<-m.ctx.Done()
	return context.Cause(m.ctx)
}

func (m *manual) LocalAddr() cm.Addr  { return cm.Addr{AddrPort: m.route.Local} }
func (m *manual) RemoteAddr() cm.Addr { return cm.Addr{AddrPort: m.route.Remote} }

func (m *manual) AllocMR(size int, access verbs.Access) (*uverbs.MR, error) {
	return cli.Own(m.pd.AllocMR(size, access, uverbs.MROptions{}))(&m.objects)
}

// Close disconnects and releases everything, the ID before the QP.
func (m *manual) Close() error {
	m.cancel(verbs.ErrClosed)
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

// routeByHand finds the device and creates the QP.
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
		ch.Close() // which also closes the ID
		return nil, err
	}
	return newManual(id, p, ch)
}

// connect performs the handshake. With siw the kernel waits for the peer and cannot be
// interrupted: if ctx ends first, everything is closed when the kernel returns.
func (m *manual) connect(ctx context.Context) error {
	done := make(chan error, 1)
	go func() { done <- m.handshake(ctx) }()
	select {
	case err := <-done:
		if err != nil {
			m.Close()
		}
		return err
	case <-ctx.Done():
		go func() {
			<-done
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
	if e.Type == cm.Established { // on iWARP, where the QP is in RTS already
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

// manualListener receives requests on an ID of its own. Connections share its channel, so
// it is closed after them.
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

// accept performs the handshake.
func (m *manual) accept(ctx context.Context) error {
	if !m.qp.PD().Context().Device().IWARP() { // where the kernel activates the QP
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
