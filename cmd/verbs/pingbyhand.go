package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/cm"
	"github.com/goverbs/verbs/uverbs"
)

// byHand is a connection whose QP is made and taken from state to state here,
// as rping -q does: the connection manager carries messages and says what they
// mean for the QP, and no more.
type byHand struct {
	id      *cm.ID
	route   cm.Route
	dev     *uverbs.Context
	pd      *uverbs.PD
	qp      *uverbs.QP
	release []func() error // in the order they were taken

	end     sync.Once
	done    chan struct{}
	reason  error
	watched chan struct{} // closed when watch has ended; nil before it runs
}

// newByHand makes what p needs on the device that id leads to, and takes over
// id, in any case, and close, which comes last of all.
func newByHand(id *cm.ID, p *pinger, close func() error) (_ *byHand, err error) {
	h := &byHand{id: id, done: make(chan struct{})}
	h.release = append(h.release, close)
	defer func() {
		if err != nil {
			h.Close()
		}
	}()
	if h.route, err = id.Route(); err != nil {
		return nil, err
	}
	dev, err := h.route.FindDevice()
	if err != nil {
		return nil, err
	}
	if h.dev, err = dev.Open(); err != nil {
		return nil, err
	}
	h.release = append(h.release, h.dev.Close)
	if h.pd, err = h.dev.AllocPD(); err != nil {
		return nil, err
	}
	h.release = append(h.release, h.pd.Close)
	if err := h.createQP(); err != nil {
		return nil, err
	}
	if err := h.modify(verbs.StateInit); err != nil {
		return nil, err
	}
	return h, p.setup(h, h.qp)
}

func (h *byHand) createQP() error {
	events, err := h.dev.CreateCompChannel()
	if err != nil {
		return err
	}
	h.release = append(h.release, events.Close)
	opt := uverbs.QPOptions{Type: verbs.RC, Cap: pingQueues}
	for cq, depth := range map[**uverbs.CQ]int{&opt.SendCQ: pingQueues.MaxSendWR, &opt.RecvCQ: pingQueues.MaxRecvWR} {
		if *cq, err = h.dev.CreateCQ(uverbs.CQOptions{Depth: depth + 1, Channel: events}); err != nil {
			return err
		}
		h.release = append(h.release, (*cq).Close)
	}
	if h.qp, err = h.pd.CreateQP(opt); err != nil {
		return err
	}
	h.release = append(h.release, h.qp.Close)
	return nil
}

// modify moves the QP to states as the connection manager says.
func (h *byHand) modify(states ...verbs.QPState) error {
	for _, state := range states {
		attr, mask, err := h.id.InitQPAttr(state)
		if err == nil {
			err = h.qp.Modify(attr, mask)
		}
		if err != nil {
			return fmt.Errorf("move QP to %v: %w", state, err)
		}
	}
	return nil
}

// activate moves the QP to RTS. It is in INIT already, but only now does the
// connection manager know what the peer may do, so it goes there again.
func (h *byHand) activate() error {
	return h.modify(verbs.StateInit, verbs.StateRTR, verbs.StateRTS)
}

// iWARP says whether the kernel itself moves the QP to RTS.
func (h *byHand) iWARP() bool {
	name, _ := transport(h.dev.Device())
	return name == "iWARP"
}

func (h *byHand) param() cm.ConnParam {
	return cm.ConnParam{QPNum: h.qp.Num(), ResponderResources: 1, InitiatorDepth: 1, RetryCount: 7, RNRRetryCount: 7}
}

// watch waits for the end of the connection.
func (h *byHand) watch() {
	h.watched = make(chan struct{})
	go func() {
		defer close(h.watched)
		_, err := awaitByHand(context.Background(), h.id)
		h.stop(err)
	}()
}

// stop takes the QP out of service, which flushes what was posted.
func (h *byHand) stop(reason error) {
	h.end.Do(func() {
		if h.qp != nil {
			h.qp.Modify(verbs.QPAttr{State: verbs.StateErr}, verbs.MaskState)
		}
		if h.watched != nil {
			h.id.Disconnect()
		}
		h.reason = reason
		close(h.done)
	})
}

func (h *byHand) Done() <-chan struct{} { return h.done }

func (h *byHand) Err() error {
	<-h.done
	return h.reason
}

func (h *byHand) LocalAddr() cm.Addr  { return cm.Addr{AddrPort: h.route.Local} }
func (h *byHand) RemoteAddr() cm.Addr { return cm.Addr{AddrPort: h.route.Remote} }

func (h *byHand) AllocMR(size int, access verbs.Access) (*uverbs.MR, error) {
	mr, err := h.pd.AllocMR(size, access, uverbs.MROptions{})
	if err == nil {
		h.release = append(h.release, mr.Close)
	}
	return mr, err
}

// Close disconnects and releases everything. The ID is first to go, so that
// nothing happens to the QP any more.
func (h *byHand) Close() error {
	h.stop(verbs.ErrClosed)
	err := h.id.Close()
	if h.watched != nil {
		<-h.watched
	}
	for _, release := range slices.Backward(h.release) {
		err = errors.Join(err, release())
	}
	h.release = nil
	return err
}
