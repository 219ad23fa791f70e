// Package rcserver takes the place of rdma/rcserver in versitygw, which is 561 lines of cgo over
// 5,240 of C++. It has the names of that package, for its routes, and package hipobj below.
package rcserver

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"strings"
	"sync"
	"time"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/s3rdma"
	"github.com/goverbs/verbs/s3rdma/hipobj"
	"github.com/goverbs/verbs/uverbs"
)

// The errors that the routes tell apart.
var (
	ErrArg       = errors.New("rcserver: invalid argument")
	ErrState     = errors.New("rcserver: wrong session state")
	ErrSession   = errors.New("rcserver: session of another owner")
	ErrStale     = errors.New("rcserver: stale handle or session")
	ErrNoSession = errors.New("rcserver: no such session")
	ErrDouble    = errors.New("rcserver: in use already")
	ErrWire      = errors.New("rcserver: transfer failed")
	ErrShort     = errors.New("rcserver: short transfer")
	ErrTrunc     = errors.New("rcserver: value is too long")
	ErrLimit     = errors.New("rcserver: limit of resources")
	ErrInternal  = errors.New("rcserver: internal error")
)

// Outcomes of ReadyTransfer.
const (
	ReadyOK = iota
	ReadyBusy
	ReadyTimeout
	ReadyVerifyFail
	ReadyWireFail
)

// DeviceOpts selects a device and limits its use. GidHint is what uverbs.Open takes: a device's
// name, its interface's, or its address. GidIdx 0 is the port's best GID.
type DeviceOpts struct {
	GidHint                      string
	Port                         uint8
	GidIdx                       int
	MaxSessions, MaxQPs          uint32
	MaxStagingBytes              uint64
	MaxUserSessions, MaxUserQPs  uint32
	MaxUserStagingBytes          uint64
	TPrepMs, TExecMs             uint64
	MaxReadySlots, MaxStageSlots uint32 // hipobj limits sessions instead
}

type PrincipalID [32]byte

type PrepareRequest struct {
	Principal         PrincipalID
	Op                uint8 // 0 is GET, 1 PUT
	Target            string
	Offset, Size      uint64
	ClientPsn, Cookie uint32
	ClientToken       string
}

type PrepareResponse struct {
	SessionID            string
	ServerQpn, ServerPsn uint32
	StagingAddr          uint64
	StagingRkey          uint32
	ReplyToken           string
}

// Handle names what a session's memory has been lent by.
type Handle struct{ session *hipobj.Session }

type StagingLease struct {
	Buf      []byte
	Capacity int
	Handle   Handle
}

type PutView struct {
	Buf    []byte
	Len    int
	Handle Handle
}

type ReadyRequest struct {
	Principal         PrincipalID
	SessionID         string
	Cookie, ClientQpn uint32
	ClientMrAddr      uint64
	ClientMrRkey      uint32
}

type ReadyResponse struct {
	BytesTransferred uint64
	CookieEcho       uint32
	Outcome          int
	Etag, VersionID  string
}

type SessionInfo struct {
	Op     uint8
	Target string
}

// RCSvc serves the routes.
type RCSvc struct {
	dev    *uverbs.Context
	gid    verbs.GID
	server *hipobj.Server
	ctx    context.Context
	cancel context.CancelFunc

	mu    sync.Mutex
	calls sync.WaitGroup             // of routes; none begins after ctx has ended
	held  map[string]*hipobj.Session // that a route has, which closes them: between Prepare and FinishPrepare, and after ReadyTransfer
}

// Init opens the device.
func Init(o DeviceOpts) (_ *RCSvc, err error) {
	s := &RCSvc{held: map[string]*hipobj.Session{}}
	if s.dev, err = uverbs.Open(o.GidHint); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			s.dev.Close()
		}
	}()
	port := max(int(o.Port), 1)
	var gid verbs.GIDEntry
	if o.GidIdx > 0 {
		gid, err = s.dev.QueryGID(port, o.GidIdx)
	} else {
		addr, _ := netip.ParseAddr(o.GidHint) // or any
		gid, err = s.dev.FindGID(port, addr)
	}
	if err != nil {
		return nil, err
	}
	least := func(a, b uint32) int { return int(min(cmp.Or(a, b), cmp.Or(b, a))) }
	s.gid = gid.GID
	s.server, err = hipobj.NewServer(s.dev, hipobj.Options{
		GID: gid,
		Limits: hipobj.Limits{
			Sessions: least(o.MaxSessions, o.MaxQPs), AccountSessions: least(o.MaxUserSessions, o.MaxUserQPs),
			Bytes: int64(o.MaxStagingBytes), AccountBytes: int64(o.MaxUserStagingBytes),
		},
		PrepareTime: time.Duration(o.TPrepMs) * time.Millisecond, MoveTime: time.Duration(o.TExecMs) * time.Millisecond,
	})
	s.ctx, s.cancel = context.WithCancel(context.Background())
	return s, err
}

// Context ends when Close begins.
func (s *RCSvc) Context() context.Context { return s.ctx }

// TryEnter admits a request unless Close has begun. Leave ends it.
func (s *RCSvc) TryEnter() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ctx.Err() != nil {
		return false
	}
	s.calls.Add(1)
	return true
}

func (s *RCSvc) Leave() { s.calls.Done() }

// Close ends all sessions, and waits for the requests.
func (s *RCSvc) Close() {
	s.mu.Lock()
	s.cancel()
	s.mu.Unlock()
	s.server.Close()
	s.calls.Wait()
	s.dev.Close()
}

// errorOf returns an error of hipobj as one that the routes know.
func errorOf(err, other error) error {
	if err == nil {
		return nil
	}
	limit, isLimit := errors.AsType[*hipobj.LimitError](err)
	e, isError := errors.AsType[*hipobj.Error](err)
	switch {
	case isLimit && limit.Never(), isError && e.Status < http.StatusInternalServerError:
		other = ErrArg
	case isLimit:
		other = ErrLimit
	case errors.Is(err, hipobj.ErrNoSession):
		other = ErrNoSession
	case errors.Is(err, hipobj.ErrState):
		other = ErrState
	}
	return fmt.Errorf("%w: %w", other, err)
}

// hold notes a session that the routes have now.
func (s *RCSvc) hold(x *hipobj.Session) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.held[x.ID()] = x
}

// holds returns a session that the routes have.
func (s *RCSvc) holds(id string) (*hipobj.Session, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if x := s.held[id]; x != nil {
		return x, nil
	}
	return nil, ErrNoSession
}

// release closes a session that the routes have, if so.
func (s *RCSvc) release(x *hipobj.Session) error {
	s.mu.Lock()
	was := s.held[x.ID()] == x
	delete(s.held, x.ID())
	s.mu.Unlock()
	if !was {
		return ErrStale
	}
	return x.Close()
}

// Prepare makes a session. FinishPrepare follows.
func (s *RCSvc) Prepare(r PrepareRequest) (*PrepareResponse, error) {
	if r.Op > 1 || int64(r.Offset) < 0 || int64(r.Size) < 0 {
		return nil, ErrArg
	}
	peer := s3rdma.QPToken{GID: s.gid} // the same device
	if strings.Trim(r.ClientToken, "0") != "" {
		var err error
		if peer, err = s3rdma.ParseQPToken(r.ClientToken); err != nil {
			return nil, fmt.Errorf("%w: %w", ErrArg, err)
		}
	}
	x, err := s.server.Prepare(hipobj.Request{
		Account: string(r.Principal[:]), Op: [...]hipobj.Op{hipobj.Get, hipobj.Put}[r.Op],
		Target: strings.Clone(r.Target), Offset: int64(r.Offset), Size: int64(r.Size), Cookie: r.Cookie, // fasthttp lends its strings
		Peer: verbs.QPAddr{QPNum: peer.QPNum, PSN: r.ClientPsn, GID: peer.GID, LID: peer.LID},
	})
	if err != nil {
		return nil, errorOf(err, ErrInternal)
	}
	s.hold(x)
	t := x.Token()
	return &PrepareResponse{SessionID: x.ID(), ServerQpn: t.QPNum, ServerPsn: x.PSN(), StagingAddr: t.Addr, StagingRkey: t.RKey, ReplyToken: t.String()}, nil
}

// FinishPrepare publishes a session, or ends it.
func (s *RCSvc) FinishPrepare(id string, committed bool) error {
	x, err := s.holds(id)
	if err != nil {
		return err
	}
	if !committed {
		return s.release(x)
	}
	s.mu.Lock()
	delete(s.held, id) // before READY can hold it
	s.mu.Unlock()
	if err := x.Publish(); err != nil {
		x.Close()
		return errorOf(err, ErrStale)
	}
	return nil
}

// BorrowStaging lends the memory of a GET.
func (s *RCSvc) BorrowStaging(id string) (*StagingLease, error) {
	x, err := s.holds(id)
	if err != nil {
		return nil, err
	}
	b := x.Bytes()
	if b == nil {
		return nil, ErrState
	}
	return &StagingLease{b, len(b), Handle{x}}, nil
}

// FinishStaging returns the memory of a GET with an object.
func (s *RCSvc) FinishStaging(l StagingLease, ok bool, written int, etag, versionID string) error {
	x := l.Handle.session
	if _, err := s.holds(x.ID()); err != nil {
		return ErrStale
	}
	if !ok || written != l.Capacity {
		s.release(x)
		return ErrShort
	}
	x.Object = hipobj.Object{ETag: strings.Clone(etag), VersionID: strings.Clone(versionID)}
	return nil
}

// SessionInfo returns what a session moves.
func (s *RCSvc) SessionInfo(id string, who PrincipalID) (*SessionInfo, error) {
	x, err := s.server.Session(string(who[:]), id)
	if err != nil {
		return nil, errorOf(err, nil)
	}
	info := &SessionInfo{Target: x.Target}
	if x.Op == hipobj.Put {
		info.Op = 1
	}
	return info, nil
}

// ReadyTransfer moves the bytes. Unless it fails, or the outcome is ReadyBusy, GetPutData or
// FinishFinal follows.
func (s *RCSvc) ReadyTransfer(r ReadyRequest) (*ReadyResponse, error) {
	x, err := s.server.Session(string(r.Principal[:]), r.SessionID)
	if err != nil {
		return nil, errorOf(err, nil)
	}
	if x.Cookie != r.Cookie {
		return nil, ErrSession
	}
	err = x.Move(s.ctx, hipobj.Ready{QPNum: r.ClientQpn, Addr: r.ClientMrAddr, RKey: r.ClientMrRkey})
	if errors.Is(err, hipobj.ErrNotReady) {
		return &ReadyResponse{Outcome: ReadyBusy}, nil
	}
	if err != nil {
		return nil, errorOf(err, ErrWire)
	}
	s.hold(x)
	return &ReadyResponse{BytesTransferred: uint64(x.Size), CookieEcho: x.Cookie, Etag: x.Object.ETag, VersionID: x.Object.VersionID}, nil
}

// GetPutData lends the bytes of a PUT, which the client cannot change any more. FinishPut follows.
func (s *RCSvc) GetPutData(id string) (*PutView, error) {
	x, err := s.holds(id)
	if err == nil {
		err = errorOf(x.Commit(), ErrInternal)
	}
	if err != nil {
		return nil, err
	}
	b := x.Bytes()
	return &PutView{b, len(b), Handle{x}}, nil
}

// FinishPut returns the bytes of a PUT, and ends the session.
func (s *RCSvc) FinishPut(v PutView, committed bool, etag, versionID string) error {
	return s.release(v.Handle.session)
}

// FinishFinal ends a session after ReadyTransfer, unless GetPutData has lent its bytes.
func (s *RCSvc) FinishFinal(id string) error {
	x, err := s.holds(id)
	if err != nil {
		return err
	}
	return s.release(x)
}

// Cancel ends a session.
func (s *RCSvc) Cancel(id string, who PrincipalID) error {
	x, err := s.server.Session(string(who[:]), id)
	if err == nil {
		err = x.Cancel()
	}
	return errorOf(err, ErrInternal)
}
