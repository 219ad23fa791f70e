package kernel

import "github.com/goverbs/verbs/internal/host"

// Complete returns a function that adds an event of a CQ to a completion channel.
func Complete(channel int) (raise func()) {
	return (&eventSource{file: host.Get(channel).(*eventFile)}).complete
}
