package s3rdma

import (
	"fmt"
	"time"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/cm"
	"github.com/goverbs/verbs/uverbs"
)

// Conns describes the queue pairs of clients, for package [github.com/goverbs/verbs/cm/conns]: RC
// connections, and DCIs while a transfer has them.
func (s *Server) Conns() (all []cm.ConnInfo) {
	s.rc.mu.Lock()
	for _, c := range s.rc.byID {
		all = append(all, c.lane.info(c.ends, c.made))
	}
	s.rc.mu.Unlock()
	if d := s.dc; d != nil {
		d.mu.Lock()
		defer d.mu.Unlock()
		for l := range d.all {
			if t := l.transfer.Load(); t != nil {
				all = append(all, l.info(t.ends, t.began))
			}
		}
	}
	return all
}

// ends are both ends of a path.
type ends struct{ local, remote verbs.QPAddr }

// transfer is what a lane is used for. It does not change.
type transfer struct {
	ends
	op    verbs.Opcode
	size  int64 // of the client's memory
	began time.Time
}

func (l *lane) info(e ends, since time.Time) cm.ConnInfo {
	i := infoOf(l.qp, hostOf(e.local), hostOf(e.remote), since)
	waits := l.waits.Load()
	if t := l.transfer.Load(); t != nil {
		i.State = fmt.Sprintf("%v of %d bytes", t.op, t.size)
		if waits == 0 {
			i.Waits = []cm.Wait{{For: "the server's program, which has the transfer", Since: t.began}}
		}
	}
	if waits != 0 {
		i.Waits = []cm.Wait{{For: "completions of the device", Since: time.Unix(0, waits)}}
	}
	return i
}

// infoOf describes a queue pair that does nothing.
func infoOf(qp *uverbs.QP, local, remote string, since time.Time) cm.ConnInfo {
	return cm.ConnInfo{Layer: "s3rdma", Local: local, Remote: remote, Device: qp.PD().Context().Device().Name, QPNum: qp.Num(), State: "idle", Since: since}
}

// hostOf returns the address of an end, for people.
func hostOf(a verbs.QPAddr) string {
	if a.GID == (verbs.GID{}) { // in a subnet of InfiniBand
		return fmt.Sprint("LID ", a.LID)
	}
	return a.GID.Addr().String()
}

// awaited is what a Client waits for, between a token and the answer.
type awaited struct {
	qp    *clientQP
	what  string
	began time.Time
}

// Conns describes the queue pairs by which servers reach the memory of requests: those of RC, and the DC
// target for all of them.
func (c *Client) Conns() (all []cm.ConnInfo) {
	c.mu.Lock()
	defer c.mu.Unlock()
	used := map[*clientQP][]cm.Wait{}
	if c.dc != nil && !c.closed {
		used[c.dc] = nil
	}
	for _, r := range c.awaited {
		used[r.qp] = append(used[r.qp], cm.Wait{For: "the answer to " + r.what, Since: r.began})
	}
	for _, h := range c.hosts {
		for _, q := range h.idle {
			used[q] = nil
		}
	}
	for q, waits := range used {
		i := infoOf(q.qp, c.Addr().String(), q.host, q.made)
		if i.Waits = waits; len(waits) > 0 {
			i.State = "in use"
		}
		all = append(all, i)
	}
	return all
}
