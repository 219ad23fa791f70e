package cm

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/internal/host"
	"github.com/goverbs/verbs/uverbs"
)

// Transport owns what endpoints and listeners share: the connection to rdma_cm,
// the open devices with the PDs of [Options].SharePD, and the limits on iWARP handshakes.
// The zero value is usable. A program needs its own only to separate some connections from
// all others, or to close everything at a known time. After the first use a Transport must
// not be copied, and its fields must not be changed.
type Transport struct {
	// IdleTimeout is how long rdma_cm and devices that are not in use stay open, for the next
	// connection; zero is 250 ms, a negative value until CloseIdle or Close. Linux 6.12
	// cannot remove a device of rxe or siw that is open: "rdma link delete" waits.
	IdleTimeout time.Duration

	// Host is the machine whose connection manager the transport uses. Nil is the kernel's,
	// /dev/infiniband/rdma_cm, or with the environment variable VERBS_SOFT the connection manager
	// of a device that package soft makes. Devices in user space have their own, which knows no
	// other devices: Host is a *soft.Device then.
	Host Host

	mu         sync.Mutex
	closed     bool
	managers   []*manager      // the last is for new IDs, unless it has ended
	devices    map[int]*device // by index: a device that is deleted and added again has the same GUID
	handshakes map[netip.AddrPort]*handshakes

	leaving leaving
	conns   sync.Map // from *Endpoint to its Route, while it is open
}

var defaultTransport Transport

// DefaultTransport returns the transport of all that has no other.
func DefaultTransport() *Transport { return &defaultTransport }

// TransportStats contains the numbers of objects that a [Transport] has open. A [Channel] of the
// program's and its IDs do not count, but the devices and endpoints on it do.
type TransportStats struct {
	Channels  int // files of rdma_cm: more than one only if the kernel has ended some
	IDs       int // listeners, connections, and requests without an answer
	Leaving   int // connections that were closed here and whose peers have not answered yet
	Devices   int
	Endpoints int // endpoints whose PD the transport has made
}

// Stats returns the current numbers, also after Close.
func (t *Transport) Stats() TransportStats {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.stats()
}

func (t *Transport) stats() TransportStats {
	s := TransportStats{Channels: len(t.managers), Devices: len(t.devices)}
	for _, m := range t.managers {
		used, leaving := m.countIDs()
		s.IDs += used
		s.Leaving += leaving
	}
	for _, d := range t.devices {
		s.Endpoints += d.users
	}
	return s
}

// CloseIdle closes connections to rdma_cm and devices that have no endpoints or objects of the
// program, and the CQs and completion channels of up to 32 closed endpoints a device. Peers of
// closed connections that have not answered are not told again.
func (t *Transport) CloseIdle() {
	t.leaving.endAll(func(*leave) bool { return true })
	t.closeManagers()
	t.mu.Lock()
	defer t.mu.Unlock()
	t.closeDevices()
}

// Close closes the transport: later dials fail with [verbs.ErrClosed]. It fails with
// [verbs.ErrInUse] while endpoints, listeners, requests, or the program's objects on a device use
// the transport, and can be called again. It waits up to a second for the peers of closed
// connections, see [Endpoint.Close].
func (t *Transport) Close() (err error) {
	if t == nil {
		return verbs.ErrClosed
	}
	t.mu.Lock()
	if s := t.stats(); s.IDs+s.Endpoints > 0 {
		err = fmt.Errorf("%w by %d endpoints and %d IDs: each endpoint, listener, request and dial has one", verbs.ErrInUse, s.Endpoints, s.IDs)
	} else if err = t.closeDevices(); err == nil {
		t.closed = true
	}
	t.mu.Unlock()
	if err == nil {
		t.leaving.close()
		t.closeManagers()
	}
	return fail("close", "transport", err)
}

func (t *Transport) orDefault() *Transport { return cmp.Or(t, &defaultTransport) }

// Host is a machine with a connection manager.
type Host interface {
	// CM returns the node of the connection manager.
	CM() string
}

func (t *Transport) node() string {
	if t.Host != nil {
		return t.Host.CM()
	}
	return host.CMNode()
}

func (t *Transport) timeout() time.Duration {
	if t.IdleTimeout < 0 {
		return math.MaxInt64
	}
	return cmp.Or(t.IdleTimeout, 250*time.Millisecond)
}

// newID makes an ID whose events go to q; nil is a queue of its own.
func (t *Transport) newID(space PortSpace, q *queue) (*ID, error) {
	id, err := t.addID(cmp.Or(space, PortSpaceTCP), q)
	if err != nil {
		return nil, err
	}
	return id.create()
}

func (t *Transport) addID(space PortSpace, q *queue) (*ID, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		return nil, fmt.Errorf("transport: %w", verbs.ErrClosed)
	}
	if n := len(t.managers); n > 0 && !t.managers[n-1].hasEnded() {
		return t.managers[n-1].addID(space, q), nil
	}
	m, err := openManager(t.node())
	if err != nil {
		return nil, err
	}
	t.managers = append(t.managers, m)
	idle := time.AfterFunc(t.timeout(), func() { t.closeManager(m) })
	m.onUnused = func() {
		if m.err != nil { // it has ended
			idle.Reset(0)
		} else {
			idle.Reset(t.timeout())
		}
	}
	go m.dispatch()
	return m.addID(space, q), nil
}

func (t *Transport) closeManagers() {
	t.mu.Lock()
	managers := slices.Clone(t.managers)
	t.mu.Unlock()
	for _, m := range managers {
		t.closeManager(m)
	}
}

func (t *Transport) closeManager(m *manager) {
	t.mu.Lock()
	at := slices.Index(t.managers, m)
	used, leaving := m.countIDs()
	unused := at >= 0 && used+leaving == 0
	if unused {
		t.managers = slices.Delete(t.managers, at, at+1)
	}
	t.mu.Unlock()
	if unused {
		m.close() // which waits for a goroutine, so not under the lock
	}
}

// closeDevices closes the devices without endpoints, and the idle CQs of the others. The
// caller holds t.mu.
func (t *Transport) closeDevices() (err error) {
	for _, d := range t.devices {
		if d.users == 0 {
			err = errors.Join(err, d.close())
		} else {
			err = errors.Join(err, d.closeIdleCQs())
		}
	}
	return err
}

// device is an open device of a transport. Its fields are guarded by the transport's mu.
type device struct {
	t     *Transport
	index int
	ctx   *uverbs.Context
	pd    *uverbs.PD // for endpoints with Options.SharePD; nil before the first
	users int
	// removed is set if the removal of the device has ended an endpoint. Other endpoints may end
	// for another reason, if their peer was such an endpoint.
	removed   bool
	idle      *time.Timer   // closes the device
	retry     time.Duration // delay of the next attempt, if the program has objects on the device
	hasLogger bool          // ctx has a connection's logger

	idleCQs []*cqSet
}

// device returns the device that a route leads to, and counts a user until release. The
// device's context logs to the first log that is not nil.
func (t *Transport) device(r Route, log *slog.Logger) (*device, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	d := t.devices[r.Index]
	if d == nil {
		var err error
		if d, err = t.open(r); err != nil {
			return nil, err
		}
	}
	if log != nil && !d.hasLogger {
		d.hasLogger = true
		d.ctx.SetLogger(log)
	}
	d.users++
	return d, nil
}

func (t *Transport) open(r Route) (*device, error) {
	if t.closed {
		return nil, fmt.Errorf("transport: %w", verbs.ErrClosed)
	}
	found, err := r.FindDevice()
	if err != nil {
		return nil, err
	}
	ctx, err := found.Open()
	if err != nil {
		return nil, err
	}
	d := &device{t: t, index: r.Index, ctx: ctx, retry: t.timeout()}
	d.idle = time.AfterFunc(t.timeout(), d.expire)
	if t.devices == nil {
		t.devices = map[int]*device{}
	}
	t.devices[r.Index] = d
	return d, nil
}

// sharedPD returns the PD of endpoints that share one.
func (d *device) sharedPD() (_ *uverbs.PD, err error) {
	d.t.mu.Lock()
	defer d.t.mu.Unlock()
	if d.pd == nil {
		d.pd, err = d.ctx.AllocPD()
	}
	return d.pd, err
}

// release ends one use of the device. After the last use the device is closed when IdleTimeout
// has passed, or at once if it has been removed.
func (d *device) release(removed bool) {
	d.t.mu.Lock()
	defer d.t.mu.Unlock()
	d.removed = d.removed || removed
	d.users--
	if d.users > 0 {
		return
	}
	if d.removed && d.close() == nil {
		return
	}
	d.retry = d.t.timeout()
	d.idle.Reset(d.retry)
}

// maxRetry bounds the time until a device that the program had objects on is found unused.
const maxRetry = time.Minute

func (d *device) expire() {
	d.t.mu.Lock()
	defer d.t.mu.Unlock()
	if d.users == 0 && d.t.devices[d.index] == d && d.close() != nil {
		if d.retry < maxRetry { // looking takes long if there are many
			d.retry = min(2*d.retry, maxRetry)
		}
		d.idle.Reset(d.retry)
	}
}

// close closes the device. It fails if the program has objects on it.
func (d *device) close() error {
	if err := d.closeIdleCQs(); err != nil {
		return err
	}
	if d.pd != nil {
		if err := d.pd.Close(); err != nil {
			return err
		}
		d.pd = nil
	}
	if err := d.ctx.Close(); err != nil {
		return err
	}
	d.idle.Stop()
	delete(d.t.devices, d.index)
	return nil
}
