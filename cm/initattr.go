package cm

import (
	"github.com/goverbs/verbs"
)

// initQuestion is all that the connection manager's answer depends on to what a QP
// of a connection on RoCE needs to move to INIT (cma_ib_init_qp_attr,
// cm_init_qp_init_attr): each is asked once while the device is open.
type initQuestion struct {
	port   int
	pkey   uint16
	agreed bool // the peer has said what it wants
	reads  bool // which is READs too
}

type initAnswer struct {
	attr verbs.QPAttr
	mask verbs.QPAttrMask
}

// initAttr is what the endpoint's QP needs to move to INIT.
func (e *Endpoint) initAttr(agreed, reads bool) (verbs.QPAttr, verbs.QPAttrMask, error) {
	switch {
	case e.iwarp: // it is always this
		return verbs.QPAttr{State: verbs.StateInit, Access: verbs.AccessRemoteWrite | verbs.AccessRemoteRead}, verbs.MaskState | verbs.MaskAccess, nil
	case e.home == nil || e.id.space.datagram():
		return e.id.initQPAttr(verbs.StateInit)
	}
	q := initQuestion{e.route.Port, e.route.PKey, agreed, reads}
	if known, ok := e.home.inits.Load(q); ok {
		a := known.(*initAnswer)
		return a.attr, a.mask, nil
	}
	attr, mask, err := e.id.initQPAttr(verbs.StateInit)
	if err == nil {
		e.home.inits.Store(q, &initAnswer{attr, mask})
	}
	return attr, mask, err
}
