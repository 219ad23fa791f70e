package s3rdma

import (
	"errors"
	"fmt"
	"sync/atomic"

	"github.com/goverbs/verbs"
)

// Reason is why the bytes of a request with a token went by HTTP.
type Reason uint8

// The reasons, in [Stats].
const (
	ReasonTransport  Reason = iota // the device has no DC, or no GID for the client's, or the token is of another protocol
	ReasonGID                      // the GID is not the client's
	ReasonConnection               // the RC connection has ended
	ReasonLimit                    // a limit is reached, or all queue pairs or the memory are in use
	ReasonLength                   // the object is longer than the client's memory, or than Limits.Size
	ReasonBody                     // the request has a body already
	ReasonFailed                   // the transfer failed while the server still had the bytes, or no queue pair could be made
	reasons
)

var reasonNames = [reasons]string{"transport", "gid", "connection", "limit", "length", "body", "failed"}

// String returns the reason as metrics name it: "limit".
func (r Reason) String() string {
	if r >= reasons {
		return fmt.Sprintf("Reason(%d)", uint8(r))
	}
	return reasonNames[r]
}

// Stats counts what a [Server] has done, and what it has now.
type Stats struct {
	Puts, Gets         uint64            // transfers that succeeded
	PutBytes, GetBytes uint64            // of them
	Failed             uint64            // transfers that moved something, or nothing, and did not succeed
	Declined           map[Reason]uint64 // requests, by each reason that there was

	Transfers   int   // that have memory and a queue pair now
	Memory      int64 // bytes that they have
	DCIs        int   // that were made
	DCIsInUse   int
	Connections int
}

// counters are updated once for each transfer.
type counters struct {
	puts, gets, putBytes, getBytes, failed atomic.Uint64
	declined                               [reasons]atomic.Uint64
}

// Stats returns the current figures. It takes no lock that a transfer holds for long.
func (s *Server) Stats() Stats {
	c := &s.stats
	st := Stats{
		Puts: c.puts.Load(), Gets: c.gets.Load(), PutBytes: c.putBytes.Load(), GetBytes: c.getBytes.Load(), Failed: c.failed.Load(),
		Declined: map[Reason]uint64{},
	}
	for i := range c.declined {
		if n := c.declined[i].Load(); n > 0 {
			st.Declined[Reason(i)] = n
		}
	}
	st.Transfers, st.Memory = s.transfers.InUse()
	st.Connections, _ = s.connections.InUse()
	if s.dc != nil {
		st.DCIs, st.DCIsInUse = s.dc.inUse()
	}
	return st
}

// decline counts a request that goes by HTTP, once, and returns the error, which matches [ErrDeclined].
func (s *Server) decline(p Peer, r Reason, err error) error {
	if errors.Is(err, ErrDeclined) {
		return err
	}
	s.stats.declined[r].Add(1)
	s.opt.Logger.Debug("s3rdma: declined", "account", p.Account, "reason", r.String(), "err", err)
	return &declined{r, err}
}

type declined struct {
	reason Reason
	err    error
}

func (d *declined) Error() string        { return fmt.Sprintf("%v: %v", ErrDeclined, d.err) }
func (d *declined) Unwrap() error        { return d.err }
func (d *declined) Is(target error) bool { return target == ErrDeclined }

// moved counts a transfer that has succeeded.
func (c *counters) moved(op verbs.Opcode, bytes int64) {
	if op == verbs.OpRDMARead {
		c.puts.Add(1)
		c.putBytes.Add(uint64(bytes))
	} else {
		c.gets.Add(1)
		c.getBytes.Add(uint64(bytes))
	}
}
