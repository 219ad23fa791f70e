package verbs

import "fmt"

// AsyncEventType is the type of an asynchronous event (enum ib_event_type of the kernel;
// ibv_get_async_event(3)).
type AsyncEventType uint32

const (
	EventCQErr AsyncEventType = iota
	EventQPFatal
	EventQPReqErr
	EventQPAccessErr
	EventCommEst
	EventSQDrained
	EventPathMig
	EventPathMigErr
	EventDeviceFatal
	EventPortActive
	EventPortErr
	EventLIDChange
	EventPKeyChange
	EventSMChange
	EventSRQErr
	EventSRQLimitReached
	EventQPLastWQEReached
	EventClientReregister
	EventGIDChange
)

var asyncNames = [...]string{
	"CQ error", "QP fatal error", "QP invalid request", "QP access error",
	"communication established", "send queue drained", "path migrated",
	"path migration failed", "device fatal error", "port active", "port error",
	"LID changed", "P_Key table changed", "subnet manager changed", "SRQ error",
	"SRQ limit reached", "last WQE reached", "client reregistration", "GID table changed",
}

func (t AsyncEventType) String() string {
	if int(t) < len(asyncNames) {
		return asyncNames[t]
	}
	return fmt.Sprintf("event %d", uint32(t))
}
