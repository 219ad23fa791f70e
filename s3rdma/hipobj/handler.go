package hipobj

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net/http"
	"net/url"
	"strings"
	"syscall"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/s3rdma"
)

// Store has the objects. Its errors may be an *[Error], or match fs.ErrNotExist or
// fs.ErrPermission; of others the client learns nothing. The target is the client's: its path may
// contain anything.
type Store interface {
	// Get fills b with the bytes of an object from r.Offset. An object that ends before is an
	// error.
	Get(ctx context.Context, r Request, b []byte) (Object, error)
	// Put stores b, of which it keeps no slice. The object is stored whole or not at all.
	Put(ctx context.Context, r Request, b []byte) (Object, error)
}

// Object describes an object to the client.
type Object struct{ ETag, VersionID string }

// Handler serves PREPARE, READY and CANCEL.
type Handler struct {
	Server *Server
	Store  Store
	// User returns the account of a request, and an error unless it may do op with the target. These
	// are empty for READY and CANCEL: their sessions have been allowed, and must be of the same
	// account. It must be set, and check the signature. Its errors are as those of a Store.
	User func(r *http.Request, op Op, target *url.URL) (account string, err error)
	// AllowPeer returns an error unless the server may send packets to a GID that a client has
	// named. Nil is [s3rdma.CheckPeer].
	AllowPeer func(r *http.Request, gid verbs.GID) error
	Logger    *slog.Logger // gets errors that clients do not see; nil is slog.Default()
}

// ServeHTTP implements http.Handler. It answers when the session's memory is free.
func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	steps := map[string]func(http.Header, *http.Request) (int, error){Path + "prepare": h.prepare, Path + "ready": h.ready, Path + "cancel": h.cancel}
	step := steps[r.URL.Path]
	var status int
	var err error
	switch {
	case get(r.Header, "protocol") != Protocol:
		set(w.Header(), "protocol-status", noStatus)
		err = &Error{http.StatusNotImplemented, "the protocol is not " + Protocol}
	case step == nil:
		err = &Error{http.StatusNotFound, "no such step of " + Protocol}
	case r.Method != http.MethodPost:
		err = &Error{http.StatusMethodNotAllowed, "steps of " + Protocol + " are POST requests"}
	default:
		set(w.Header(), "protocol", Protocol)
		status, err = step(w.Header(), r)
	}
	if err == nil {
		w.WriteHeader(status)
		return
	}
	status, text := statusOf(err)
	if status == http.StatusInternalServerError {
		logger := h.Logger
		if logger == nil {
			logger = slog.Default()
		}
		logger.ErrorContext(r.Context(), Protocol, "path", r.URL.Path, "err", err)
	}
	http.Error(w, text, status)
}

// statusOf returns the HTTP status of an error, and what the client may know of it.
func statusOf(err error) (int, string) {
	status := http.StatusInternalServerError
	if e, ok := errors.AsType[*Error](err); ok {
		return e.Status, e.Text
	}
	limit, ok := errors.AsType[*LimitError](err)
	_, isWC := errors.AsType[*verbs.WCError](err)
	_, isVerbs := errors.AsType[*verbs.Error](err)
	switch {
	case ok && limit.Never():
		status = http.StatusRequestEntityTooLarge
	case ok, errors.Is(err, ErrServerClosed), errors.Is(err, syscall.ENOMEM):
		status = http.StatusServiceUnavailable // hipObject's client takes it for busy
	case errors.Is(err, ErrNoSession):
		status = http.StatusNotFound
	case errors.Is(err, ErrState), errors.Is(err, ErrNotReady), errors.Is(err, errCancelled):
		status = http.StatusConflict
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, context.Canceled):
		status = http.StatusGatewayTimeout
	case isWC, isVerbs:
		status = http.StatusBadGateway
	case errors.Is(err, fs.ErrNotExist):
		return http.StatusNotFound, "no such object"
	case errors.Is(err, fs.ErrPermission):
		return http.StatusForbidden, "access denied"
	default:
		return status, http.StatusText(status)
	}
	return status, err.Error()
}

func (h *Handler) prepare(out http.Header, r *http.Request) (_ int, err error) {
	asked := false
	defer func() {
		if err != nil && !asked { // Server.Prepare counts its own
			h.Server.count(refused)
		}
	}()
	n := numbers{h: r.Header}
	q := Request{
		Op: Op(get(r.Header, "op")), Target: get(r.Header, "target"),
		Size: int64(n.get("size", 10, 63)), Offset: int64(n.optional("offset", 10, 63)), Cookie: uint32(n.get("cookie", 16, 32)),
	}
	psn := n.get("psn", 16, 24)
	if n.err != nil {
		return 0, n.err
	}
	target, err := url.ParseRequestURI(q.Target)
	if err != nil {
		return 0, badf("target %.40q: %v", q.Target, errors.Unwrap(err))
	}
	hex, _, _ := strings.Cut(get(r.Header, "token"), ":") // some clients append address and size
	token, err := s3rdma.ParseQPToken(hex)
	if err != nil {
		return 0, badf("%v", err)
	}
	q.Peer = verbs.QPAddr{QPNum: token.QPNum, PSN: uint32(psn), GID: token.GID, LID: token.LID}
	if err := q.check(h.Server.maxSize); err != nil {
		return 0, err
	}
	if q.Account, err = h.User(r, q.Op, target); err != nil {
		return 0, err
	}
	allow := h.AllowPeer
	if allow == nil {
		allow = s3rdma.CheckPeer
	}
	if err := allow(r, q.Peer.GID); err != nil {
		return 0, &Error{http.StatusForbidden, err.Error()}
	}
	asked = true
	x, err := h.Server.Prepare(q)
	if err != nil {
		return 0, err
	}
	published := false
	defer func() {
		if !published { // also if the store panics
			x.Close()
		}
	}()
	if q.Op == Get {
		ctx, stop := x.Context(r.Context())
		defer stop()
		if x.Object, err = h.Store.Get(ctx, q, x.Bytes()); err != nil {
			return 0, err
		}
	}
	if err := x.Publish(); err != nil {
		return 0, err
	}
	published = true
	t := x.Token()
	set(out, "reply", okReply+t.String())
	set(out, "session", x.ID())
	set(out, "psn", fmt.Sprintf("%06X", x.PSN()))
	set(out, "qpn", fmt.Sprintf("%x", t.QPNum))
	set(out, "mr-addr", fmt.Sprintf("%x", t.Addr))
	set(out, "mr-rkey", fmt.Sprintf("%x", t.RKey))
	return http.StatusOK, nil
}

// session returns the session of READY or CANCEL.
func (h *Handler) session(r *http.Request) (*Session, error) {
	account, err := h.User(r, "", nil)
	if err != nil {
		return nil, err
	}
	return h.Server.Session(account, get(r.Header, "session"))
}

func (h *Handler) cancel(_ http.Header, r *http.Request) (int, error) {
	x, err := h.session(r)
	if err != nil {
		return 0, err
	}
	return http.StatusNoContent, x.Cancel()
}

func (h *Handler) ready(out http.Header, r *http.Request) (int, error) {
	n := numbers{h: r.Header}
	cookie := uint32(n.get("cookie", 16, 32))
	peer := Ready{QPNum: uint32(n.get("qpn", 16, 24)), Addr: n.optional("mr-addr", 16, 64), RKey: uint32(n.optional("mr-rkey", 16, 32))}
	if n.err != nil {
		return 0, n.err
	}
	x, err := h.session(r)
	if err != nil {
		return 0, err
	}
	if cookie != x.Cookie {
		return 0, ErrNoSession
	}
	if err := x.Move(r.Context(), peer); err != nil {
		return 0, err
	}
	defer x.Close()
	if x.Op == Put {
		if err := x.Commit(); err != nil {
			return 0, err
		}
		sum := checksum(x.Bytes()) // before the store may change them
		ctx, stop := x.Context(r.Context())
		defer stop()
		if x.Object, err = h.Store.Put(ctx, x.Request, x.Bytes()); err != nil {
			return 0, err
		}
		set(out, "checksum", sum)
	}
	set(out, "bytes-transferred", fmt.Sprint(x.Size))
	set(out, "cookie", fmt.Sprintf("%08X", x.Cookie))
	set(out, "etag", x.Object.ETag)
	if x.Object.VersionID != "" {
		set(out, "version-id", x.Object.VersionID)
	}
	return http.StatusOK, nil
}
