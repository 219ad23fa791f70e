// Package rdma takes the place of package rdma in versitygw, which is cgo over NVIDIA's closed
// libcuobjserver. It has what the gateway calls of that package, and s3rdma's pool of DC initiators below.
package rdma

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"sync/atomic"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/s3rdma"
	"github.com/goverbs/verbs/uverbs"
)

// MaxTransferSize is the most bytes of an operation.
const MaxTransferSize = s3rdma.MaxSize

// RDMATunables are the attributes that operators set.
type RDMATunables struct {
	NumDCIs          int
	CQDepth          uint32 // each initiator has a completion queue of its own here
	DCKey            uint64
	ServiceLevel     int
	Timeout          uint8
	HopLimit         uint32
	PKeyIndex        int
	DelayInterval    uint32 // here nobody polls: completions wake the transfer
	DelayMode        int
	RetryCount       uint8
	QPResetOnFailure bool // always
	TrafficClass     uint32
	MaxRdAtomic      int
}

// DefaultRDMATunables returns the defaults of libcuobjserver.
func DefaultRDMATunables() RDMATunables {
	return RDMATunables{
		NumDCIs: 128, CQDepth: 640, DCKey: s3rdma.DefaultDCKey, Timeout: 16, HopLimit: 4, DelayInterval: 5000, DelayMode: 1,
		RetryCount: 7, QPResetOnFailure: true, TrafficClass: 96,
	}
}

// fabric returns the attributes as s3rdma has them, where 0 is a default.
func (t *RDMATunables) fabric() s3rdma.Fabric {
	or := func(n int) int { return cmp.Or(n, -1) }
	return s3rdma.Fabric{
		DCIs: t.NumDCIs, DCKey: t.DCKey, Reads: t.MaxRdAtomic, Timeout: or(int(t.Timeout)), RetryCount: or(int(t.RetryCount)),
		TrafficClass: or(int(t.TrafficClass)), SL: t.ServiceLevel, HopLimit: int(t.HopLimit), PKeyIndex: t.PKeyIndex,
	}
}

var debug atomic.Bool

// ConfigureTelemetry makes servers that are made later log what they decline.
func ConfigureTelemetry(on bool) { debug.Store(on) }

// DebugTelemetryEnabled reports whether they do.
func DebugTelemetryEnabled() bool { return debug.Load() }

// Server moves bytes by DC.
type Server struct {
	dev  *uverbs.Context
	srv  *s3rdma.Server
	ctx  context.Context // ends with Close
	stop context.CancelFunc
}

// NewServer makes a server on the device that has an address. There is nothing to listen to: the port is
// of no use.
func NewServer(ip string, _ uint16, t *RDMATunables) (_ *Server, err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("rdma: new server on %s: %w", ip, err)
		}
	}()
	addr, err := netip.ParseAddr(ip)
	if err != nil {
		return nil, err
	}
	s := &Server{}
	s.ctx, s.stop = context.WithCancel(context.Background())
	if s.dev, err = uverbs.Open(ip); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			s.Close()
		}
	}()
	if err = s.dev.Probe(uverbs.FeatureDC); err != nil {
		return nil, err
	}
	if t == nil {
		defaults := DefaultRDMATunables()
		t = &defaults
	}
	const most = 1<<16 - 1 // as many as there are channels; the gateway's pool has fewer buffers
	opt := s3rdma.ServerOptions{
		Device: s.dev, Fabric: t.fabric(), Limits: s3rdma.Limits{Transfers: most, AccountTransfers: most},
		Memory: 2 * 4096, Part: 4096, Parts: 2, // the gateway has its own
	}
	if debug.Load() {
		opt.Logger = slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelDebug}))
	}
	if opt.GID, err = s.dev.FindGID(1, addr); err != nil {
		return nil, err
	}
	s.srv, err = s3rdma.NewServer(opt)
	return s, err
}

// StartSession does nothing: a server is ready when it is made.
func (s *Server) StartSession() error { return nil }

// Close ends the transfers, and frees everything but buffers.
func (s *Server) Close() {
	s.stop()
	s.srv.Close() // of nil is harmless
	s.dev.Close()
}

// Buffer is registered memory.
type Buffer struct{ mr *uverbs.MR }

// AllocHostBuffer allocates memory, registered already. The gateway passes it on and knows nothing of it.
func (s *Server) AllocHostBuffer(size int) (*uverbs.MR, error) {
	return s.srv.PD().AllocMR(size, verbs.AccessLocalWrite, uverbs.MROptions{})
}

// FreeHostBuffer frees the memory, which no transfer uses.
func (s *Server) FreeHostBuffer(mr *uverbs.MR) { mr.Close() }

// RegisterBuffer returns memory as a buffer.
func (s *Server) RegisterBuffer(mr *uverbs.MR, _ int) (*Buffer, error) { return &Buffer{mr}, nil }

// DeregisterBuffer does nothing: FreeHostBuffer follows.
func (s *Server) DeregisterBuffer(*Buffer) {}

// HostPtr returns what AllocHostBuffer has.
func (b *Buffer) HostPtr() *uverbs.MR { return b.mr }

// Slice returns the memory.
func (b *Buffer) Slice() []byte { return b.mr.Bytes() }

// AllocateChannel and FreeChannel do nothing: a transfer has an initiator of its own while it runs.
func (s *Server) AllocateChannel() (uint16, error) { return 0, nil }
func (s *Server) FreeChannel(uint16)               {}

// HandleGet writes the first bytes of a buffer to the client's memory, from an address on.
func (s *Server) HandleGet(_ string, b *Buffer, start uint64, size int64, token string, _ uint16) (int64, error) {
	return s.move(verbs.OpRDMAWrite, b, start, size, token)
}

// HandlePut reads the client's memory, from an address on, to the first bytes of a buffer.
func (s *Server) HandlePut(_ string, b *Buffer, start uint64, size int64, token string, _ uint16) (int64, error) {
	return s.move(verbs.OpRDMARead, b, start, size, token)
}

// anyGID: the gateway does not say where a request has come from. Its operators keep other machines
// behind a filter of the network.
func anyGID(verbs.GID) error { return nil }

func (s *Server) move(op verbs.Opcode, b *Buffer, start uint64, size int64, token string) (int64, error) {
	if size <= 0 || size > MaxTransferSize || size > int64(b.mr.Len()) {
		return 0, fmt.Errorf("rdma: %v of %d bytes, want 1 to %d, and at most the buffer's %d: %w", op, size, MaxTransferSize, b.mr.Len(), verbs.ErrRange)
	}
	t, err := s3rdma.ParseDCToken(token)
	if err != nil {
		return 0, err
	}
	remote, err := s.srv.Remote(s3rdma.Peer{AllowGID: anyGID}, token)
	if err != nil {
		return 0, err
	}
	defer remote.Close()
	if err = remote.Move(s.ctx, op, b.mr.SGE(0, int(size)), int64(start-t.Addr)); err == nil {
		err = remote.Commit(s.ctx)
	}
	if errors.Is(err, s3rdma.ErrMemoryLost) {
		b.mr.Close() // with it, the device's access ends
	}
	if err != nil {
		return 0, fmt.Errorf("rdma: %w", err)
	}
	return size, nil
}
