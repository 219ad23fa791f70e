package ibcm

import (
	"syscall"

	"github.com/goverbs/verbs/internal/roce"
)

// Delay announces that the answer to the REQ or REP takes up to a time, 4.096 µs * 2^timeout: a
// program may take longer to accept than the peer's timeout and retries allow, and the peer could
// not tell that from a host that is gone. The peer gets this message (MRA) only if it repeats its
// own. Delay fails with EINVAL (ib_send_cm_mra with IB_CM_MRA_FLAG_DELAY).
func (id *ID) Delay(timeout uint8) error {
	switch id.state {
	case RequestRcvd:
		id.state = MRARequestSent
	case ReplyRcvd:
		id.state = MRAReplySent
	default:
		return syscall.EINVAL
	}
	id.serviceTimeout = timeout
	return nil
}

// maxServiceTime is the longest time that a peer can ask for, rdma_cm's 65 s (CMA_CM_MRA_SETTING).
// The field reaches to 2.4 hours, for which a dial would hang.
const maxServiceTime = 24

func (id *ID) mra(answers roce.Answered) *roce.MRA {
	return &roce.MRA{LocalCommID: id.local, RemoteCommID: id.remote, Message: answers, ServiceTimeout: id.serviceTimeout}
}

// handleMRA handles the announcement of a later answer (cm_mra_handler). It extends the wait, and
// the message is not repeated meanwhile. A second MRA for a message is ignored: the state has
// changed.
func (m *Manager) handleMRA(r *roce.MRA) {
	remote := r.LocalCommID
	if r.Message == roce.AnswersREQ {
		remote = 0 // as in handleREP
	}
	id := m.find(r.RemoteCommID, remote)
	switch {
	case id == nil || id.pending == nil:
		return
	case id.state == RequestSent && r.Message == roce.AnswersREQ:
		id.state = MRARequestRcvd
	case id.state == ReplySent && r.Message == roce.AnswersREP:
		id.state = MRAReplyRcvd
	default:
		return
	}
	id.pending.extend(duration(min(r.ServiceTimeout, maxServiceTime)) + duration(min(id.av.timeout, maxServiceTime)))
	id.handle(&Event{Type: MRAReceived})
}
