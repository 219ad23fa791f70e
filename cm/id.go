package cm

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"net/netip"
	"runtime"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/abi"
	"github.com/goverbs/verbs/internal/attr"
	"github.com/goverbs/verbs/internal/sys"
	"github.com/goverbs/verbs/mmap"
)

// ID is the kernel's object for a listener or for one end of a connection (rdma_create_id(3)). The
// caller must close it, after the QP that it connects.
type ID struct {
	// Tag is for the program's use.
	Tag any

	m      *manager
	uid    uint64
	handle uint32
	space  PortSpace
	events *queue // where its events go
	// detached keeps renewals from moving the ID, see manager.detach. They read it with renewMu of the
	// manager's thread locked; runBlocking sets it with renewMu locked for reading, and clears it so or
	// on the manager's thread, which is the one that renews.
	detached bool

	// cmdMu is held for reading by commands, so that Close waits until they end: the
	// kernel reuses the handle of an ID that it has destroyed.
	cmdMu  sync.RWMutex
	closed bool

	closing   sync.Mutex
	destroyed bool

	leaving       atomic.Bool              // it is in Transport.leaving: its endpoint is closed
	notified      atomic.Bool              // Notify has established the connection
	endpoint      atomic.Pointer[Endpoint] // of Channel.Connect or Channel.Accept
	ackTimeoutSet atomic.Bool              // by SetAckTimeout
	groups        sync.Map                 // the handles of multicast groups, by address

	// Guarded by events.mu:
	ended       bool     // it gets no more events
	over        bool     // an event has said that its connection has ended
	established func()   // called when the peer has confirmed that its request was accepted
	onOver      func()   // see queue.whenOver
	backlog     *backlog // of a listener
}

// PortSpace is the set of ports for one kind of connection (rdma_create_id(3)).
type PortSpace uint16

const (
	PortSpaceTCP   PortSpace = abi.RDMA_PS_TCP   // reliable connections
	PortSpaceUDP   PortSpace = abi.RDMA_PS_UDP   // datagrams
	PortSpaceIPoIB PortSpace = abi.RDMA_PS_IPOIB // datagrams that share IPoIB's Q_Key
	PortSpaceIB    PortSpace = abi.RDMA_PS_IB    // native InfiniBand services
)

func (s PortSpace) datagram() bool { return s == PortSpaceUDP || s == PortSpaceIPoIB }

func (id *ID) create() (*ID, error) {
	typ := verbs.RC
	if id.space.datagram() {
		typ = verbs.UD
	}
	req := abi.RdmaUcmCreateId{Uid: id.uid, Ps: uint16(id.space), QpType: uint8(typ)}
	msg, err := encode(abi.RDMA_USER_CM_CMD_CREATE_ID, mmap.Bytes(&req), &req.Response, len(mmap.Bytes(&id.handle)))
	if err == nil {
		defer msg.free()
		msg.handle = &id.handle
		err = translateErrno(id.m.run(msg, nil))
	}
	if err != nil {
		id.m.forget(id)
		return nil, fail("create ID", "", err)
	}
	return id, nil
}

// Channel returns the channel that the ID was made on, or nil if a [Dialer] or [Listener] made it.
func (id *ID) Channel() *Channel { return id.m.channel }

// use calls f with the ID's manager, and fails if the ID has been closed. Close waits for f.
func (id *ID) use(f func(m *manager) error) error {
	id.cmdMu.RLock()
	defer id.cmdMu.RUnlock()
	if id.closed {
		return verbs.ErrClosed
	}
	err := f(id.m)
	if err == syscall.ENXIO { // ucma_get_ctx, once ucma_close_id runs for the device
		return fmt.Errorf("%w: %w", verbs.ErrDeviceRemoved, err)
	}
	return err
}

// idCommand runs a command about an ID that has no answer.
func idCommand[Req any](id *ID, cmd uint32, req *Req) error {
	return id.use(func(m *manager) error { return m.exec(cmd, mmap.Bytes(req), nil, nil) })
}

// idQuery runs a command about an ID and stores its answer in *resp, see manager.exec.
func idQuery[Resp, Req any](id *ID, cmd uint32, req *Req, response *uint64, resp *Resp) error {
	return id.use(func(m *manager) error { return m.exec(cmd, mmap.Bytes(req), response, mmap.Bytes(resp)) })
}

// Close waits for commands in progress and destroys the ID (rdma_destroy_id(3)). The kernel ends a
// connection that is up. Later calls fail with [verbs.ErrClosed].
func (id *ID) Close() error {
	if id == nil {
		return verbs.ErrClosed
	}
	id.closing.Lock()
	defer id.closing.Unlock()
	if id.destroyed {
		return nil
	}
	id.cmdMu.Lock()
	id.closed = true
	id.cmdMu.Unlock()
	err := id.destroy()
	if errors.Is(err, verbs.ErrClosed) {
		err = nil // the end of its channel has destroyed it
	}
	id.destroyed = err == nil
	id.m.forget(id)
	return fail("destroy ID", "", err)
}

func (id *ID) destroy() error {
	req := abi.RdmaUcmDestroyId{Id: id.handle}
	var resp abi.RdmaUcmDestroyIdResp
	if !id.notified.Load() {
		return id.m.exec(abi.RDMA_USER_CM_CMD_DESTROY_ID, mmap.Bytes(&req), &req.Response, mmap.Bytes(&resp))
	}
	return sys.Uninterrupted(func() error {
		return id.m.runBlocking(id, abi.RDMA_USER_CM_CMD_DESTROY_ID, mmap.Bytes(&req), &req.Response, len(mmap.Bytes(&resp)))
	})
}

// Bind binds the ID to a local address. Port 0 selects a free port.
func (id *ID) Bind(addr netip.AddrPort) error {
	return fail("bind ID to", addr.String(), id.bind(addr))
}

func (id *ID) bind(addr netip.AddrPort) error {
	if err := checkZone(addr.Addr()); err != nil {
		return err
	}
	sa, size, err := sockaddr(addr)
	if err != nil {
		return err
	}
	return idCommand(id, abi.RDMA_USER_CM_CMD_BIND, &abi.RdmaUcmBind{Id: id.handle, AddrSize: size, Addr: sa})
}

// ResolveAddr starts to find the device that leads to dst, from src if that is valid. AddrResolved
// or AddrError follows: over a veth pair it may take the timeout to resolve a neighbour.
func (id *ID) ResolveAddr(src, dst netip.AddrPort, timeout time.Duration) error {
	return fail("resolve address", dst.String(), id.resolveAddr(src, dst, timeout))
}

func (id *ID) resolveAddr(src, dst netip.AddrPort, timeout time.Duration) error {
	ms, err := milliseconds(timeout)
	if err != nil {
		return err
	}
	req := abi.RdmaUcmResolveAddr{Id: id.handle, TimeoutMs: ms}
	if src.IsValid() {
		if req.SrcAddr, req.SrcSize, err = sockaddr(src); err != nil {
			return err
		}
	}
	if err := checkZone(dst.Addr()); err != nil {
		return err
	}
	if req.DstAddr, req.DstSize, err = sockaddr(dst); err != nil {
		return err
	}
	return idCommand(id, abi.RDMA_USER_CM_CMD_RESOLVE_ADDR, &req)
}

// ResolveRoute starts to find the path. RouteResolved or RouteError follows.
func (id *ID) ResolveRoute(timeout time.Duration) error {
	return fail("resolve route of ID", "", id.resolveRoute(timeout))
}

func (id *ID) resolveRoute(timeout time.Duration) error {
	ms, err := milliseconds(timeout)
	if err != nil {
		return err
	}
	return idCommand(id, abi.RDMA_USER_CM_CMD_RESOLVE_ROUTE, &abi.RdmaUcmResolveRoute{Id: id.handle, TimeoutMs: ms})
}

// milliseconds converts a timeout for the kernel. It rounds up, as the kernel resolves no route
// within 0 ms (rdma_resolve_route: EINVAL), and stops at the longest time that the kernel does not
// take for endless (msecs_to_jiffies).
func milliseconds(timeout time.Duration) (uint32, error) {
	if timeout < 0 {
		return 0, fmt.Errorf("timeout of %v: %w", timeout, verbs.ErrRange)
	}
	const most = math.MaxInt32 * time.Millisecond
	return uint32((min(timeout, most) + time.Millisecond - 1) / time.Millisecond), nil
}

// Listen makes a bound ID accept connection requests, which follow as ConnectRequest events. While
// backlog of them wait, 1024 if that is zero, further ones are turned away.
func (id *ID) Listen(backlog int) error { return fail("listen on ID", "", id.listen(backlog)) }

const (
	defaultBacklog = 1024      // the kernel's (net.rdma_ucm.max_backlog)
	maxBacklog     = 1<<31 - 1 // that the kernel's commands have room for
)

// listen asks the kernel for its longest backlog, with 0: siw loses track of requests beyond the
// kernel's. manager.dispatch takes requests from the kernel at once, so the backlog that counts is
// ID.backlog, of most requests.
func (id *ID) listen(most int) error {
	if most < 0 || most > maxBacklog {
		return fmt.Errorf("backlog is %d: %w: 1 to %d, or 0 for %d", most, verbs.ErrRange, maxBacklog, defaultBacklog)
	}
	id.events.mu.Lock()
	if id.backlog == nil {
		id.backlog = new(backlog)
	}
	id.backlog.most = cmp.Or(most, defaultBacklog)
	id.events.mu.Unlock()
	return idCommand(id, abi.RDMA_USER_CM_CMD_LISTEN, &abi.RdmaUcmListen{Id: id.handle})
}

// ConnParam contains the parameters that the two sides exchange (struct
// rdma_conn_param, rdma_connect(3)).
type ConnParam struct {
	QPNum              uint32
	PrivateData        []byte
	ResponderResources uint8 // RDMA READs this side serves at once
	InitiatorDepth     uint8 // RDMA READs this side starts at once
	FlowControl        bool
	RetryCount         uint8 // 0..7; active side
	RNRRetryCount      uint8 // 0..7, 7 means without end
	SRQ                bool
	QKey               uint32    // for datagrams, on native InfiniBand addresses
	ECE                verbs.ECE // extensions that this side offers (rdma_set_local_ece(3))
}

func eceOf(e verbs.ECE) abi.RdmaUcmEce {
	return abi.RdmaUcmEce{VendorId: e.VendorID, AttrMod: e.Options}
}

// encode fills in the kernel's structure.
func (p *ConnParam) encode(a *abi.RdmaUcmConnParam) error {
	if err := checkPrivateData(p.PrivateData); err != nil {
		return err
	}
	a.QpNum, a.Qkey, a.Valid = p.QPNum, p.QKey, 1
	a.ResponderResources, a.InitiatorDepth = p.ResponderResources, p.InitiatorDepth
	a.RetryCount, a.RnrRetryCount = p.RetryCount, p.RNRRetryCount
	a.PrivateDataLen = uint8(copy(a.PrivateData[:], p.PrivateData))
	if p.FlowControl {
		a.FlowControl = 1
	}
	if p.SRQ {
		a.Srq = 1
	}
	return nil
}

// Connect requests a connection. ConnectResponse, which [ID.Establish] answers,
// Established, or an event of failure follows.
func (id *ID) Connect(p ConnParam) error { return fail("connect ID", "", id.connectBlocking(p)) }

func (id *ID) connectBlocking(p ConnParam) error {
	// siw waits for TCP's handshake here. A signal would end it, and the kernel would
	// start another: a listening siw then releases its listener (siw_cm_llp_state_change).
	return sys.Uninterrupted(func() error { return id.connect(p, true) })
}

// connect is Connect without protection from signals, which do no harm on RoCE. blocking
// is set if it may block, as on iWARP.
func (id *ID) connect(p ConnParam, blocking bool) error {
	req := abi.RdmaUcmConnect{Id: id.handle, Ece: eceOf(p.ECE)}
	if err := p.encode(&req.ConnParam); err != nil {
		return err
	}
	err := id.use(func(m *manager) error {
		if blocking {
			return m.runBlocking(id, abi.RDMA_USER_CM_CMD_CONNECT, mmap.Bytes(&req), nil, 0)
		}
		return m.exec(abi.RDMA_USER_CM_CMD_CONNECT, mmap.Bytes(&req), nil, nil)
	})
	return id.tooLong(err, p.PrivateData, roceRequest, roceDatagramRequest)
}

// Accept accepts a connection. Established, or an event of failure, follows.
func (id *ID) Accept(p ConnParam) error {
	req := abi.RdmaUcmAccept{Uid: id.uid, Id: id.handle, Ece: eceOf(p.ECE)}
	err := p.encode(&req.ConnParam)
	if err == nil {
		err = idCommand(id, abi.RDMA_USER_CM_CMD_ACCEPT, &req)
	}
	return fail("accept on ID", "", id.tooLong(err, p.PrivateData, roceReply, roceDatagramReply))
}

// Establish answers a ConnectResponse when the QP is in RTS, and the peer gets Established
// (rdma_establish(3)). On iWARP the kernel does that: Established comes instead.
func (id *ID) Establish() error {
	// The kernel has no command of this name. ACCEPT without parameters on the side that dialed
	// sends the confirmation, RTU (ucma_accept, cma_rep_recv).
	return fail("establish connection of ID", "", idCommand(id, abi.RDMA_USER_CM_CMD_ACCEPT, &abi.RdmaUcmAccept{Id: id.handle}))
}

// Reject rejects a connection.
func (id *ID) Reject(privateData []byte) error {
	return fail("reject connection of ID", "", id.reject(privateData))
}

func (id *ID) reject(privateData []byte) error {
	if err := checkPrivateData(privateData); err != nil {
		return err
	}
	req := abi.RdmaUcmReject{Id: id.handle, PrivateDataLen: uint8(len(privateData)), Reason: rejectConsumer}
	copy(req.PrivateData[:], privateData)
	return id.tooLong(idCommand(id, abi.RDMA_USER_CM_CMD_REJECT, &req), privateData, roceReject, roceDatagramReply)
}

// Disconnect ends a connection. Disconnected follows on both sides.
func (id *ID) Disconnect() error {
	return fail("disconnect ID", "", idCommand(id, abi.RDMA_USER_CM_CMD_DISCONNECT, &abi.RdmaUcmDisconnect{Id: id.handle}))
}

// InitQPAttr returns the attributes that move the connection's QP to a state.
func (id *ID) InitQPAttr(state verbs.QPState) (verbs.QPAttr, verbs.QPAttrMask, error) {
	req := abi.RdmaUcmInitQpAttr{Id: id.handle, QpState: uint32(state)}
	var resp abi.IbUverbsQpAttr
	if err := idQuery(id, abi.RDMA_USER_CM_CMD_INIT_QP_ATTR, &req, &req.Response, &resp); err != nil {
		return verbs.QPAttr{}, 0, fail("query QP attributes of ID", "", err)
	}
	a, mask := attr.OfQP(&resp)
	a.State = state
	return a, mask, nil
}

// Route is the route of an ID: the device, and the addresses of both ends.
type Route struct {
	Device        verbs.GUID // of the device; virtual functions may have a zero one
	Index         int        // the kernel's index of the device, see [uverbs.Device.Index]
	Port          int        // of the device; zero as long as none is known
	PKey          uint16
	Local, Remote netip.AddrPort
}

// hasDevice reports whether the device is known. Its GUID and its index may be zero.
func (r Route) hasDevice() bool { return r.Port != 0 }

// Route returns the route as far as it is known.
func (id *ID) Route() (Route, error) {
	r, err := id.query(abi.RDMA_USER_CM_QUERY_ADDR)
	if err != nil {
		return Route{}, fail("query route of ID", "", err)
	}
	route := Route{Index: int(r.IbdevIndex), Port: int(r.PortNum), PKey: r.Pkey, Local: addrPort(&r.SrcAddr), Remote: addrPort(&r.DstAddr)}
	copy(route.Device[:], mmap.Bytes(&r.NodeGuid))
	return route, nil
}

// SetTOS sets the type of service, or traffic class (RDMA_OPTION_ID_TOS).
func (id *ID) SetTOS(tos uint8) error {
	return id.setOption("type of service", abi.RDMA_OPTION_ID, abi.RDMA_OPTION_ID_TOS, []byte{tos})
}

// SetReuseAddr lets several IDs bind to one address. It precedes Bind.
func (id *ID) SetReuseAddr(on bool) error {
	return id.setOption("reuse of addresses", abi.RDMA_OPTION_ID, abi.RDMA_OPTION_ID_REUSEADDR, flag(on))
}

// SetAFOnly limits a listener on the IPv6 wildcard to IPv6 connections.
func (id *ID) SetAFOnly(on bool) error {
	return id.setOption("address family", abi.RDMA_OPTION_ID, abi.RDMA_OPTION_ID_AFONLY, flag(on))
}

// SetAckTimeout sets how long the QP waits for an acknowledgement: 4.096 us * 2^exp. It must be
// called before ResolveRoute.
func (id *ID) SetAckTimeout(exp uint8) error {
	id.ackTimeoutSet.Store(true)
	return id.setOption("acknowledgement timeout", abi.RDMA_OPTION_ID, abi.RDMA_OPTION_ID_ACK_TIMEOUT, []byte{exp})
}

func flag(on bool) []byte {
	b := make([]byte, 4) // an int
	if on {
		binary.NativeEndian.PutUint32(b, 1)
	}
	return b
}

func (id *ID) setOption(what string, level, name uint32, value []byte) error {
	var pin runtime.Pinner
	defer pin.Unpin()
	err := idCommand(id, abi.RDMA_USER_CM_CMD_SET_OPTION, &abi.RdmaUcmSetOption{
		Optval: mmap.Pin(&pin, value), Id: id.handle, Level: level, Optname: name, Optlen: uint32(len(value)),
	})
	return fail("set "+what+" of ID", "", err)
}

// Notify reports an event of the connection's QP to the connection manager (rdma_notify(3)):
// EventCommEst, when a message has come before Established, which then follows at once. It fails if
// the confirmation has come meanwhile. If the peer has gone and Linux does not know it yet, Linux
// goes on repeating the acceptance, and [ID.Close] waits for a minute until it gives up. An
// [Endpoint] does not wait.
func (id *ID) Notify(event verbs.AsyncEventType) error {
	err := idCommand(id, abi.RDMA_USER_CM_CMD_NOTIFY, &abi.RdmaUcmNotify{Id: id.handle, Event: uint32(event)})
	if err == nil {
		id.notified.Store(true)
	}
	return fail("notify ID", "", err)
}

func (id *ID) query(option uint32) (r abi.RdmaUcmQueryAddrResp, err error) {
	req := abi.RdmaUcmQuery{Id: id.handle, Option: option}
	err = idQuery(id, abi.RDMA_USER_CM_CMD_QUERY, &req, &req.Response, &r)
	return r, err
}

// GIDs returns the GIDs of both ends.
func (id *ID) GIDs() (local, remote verbs.GID, err error) {
	r, err := id.query(abi.RDMA_USER_CM_QUERY_GID)
	if err != nil {
		return local, remote, fail("query GIDs of ID", "", err)
	}
	// struct sockaddr_ib: family, P_Key, flow, then the GID.
	copy(local[:], mmap.Bytes(&r.SrcAddr)[8:])
	copy(remote[:], mmap.Bytes(&r.DstAddr)[8:])
	return local, remote, nil
}
