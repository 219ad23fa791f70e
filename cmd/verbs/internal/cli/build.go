package cli

import (
	"runtime"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/internal/unix"
)

// Build is what a report says about the program and its system.
type Build struct {
	Version string `json:"version"`
	Go      string `json:"go"`
	Kernel  string `json:"kernel,omitempty"`
}

// ThisBuild describes this program.
func ThisBuild() Build {
	b := Build{Version: verbs.Version, Go: runtime.Version()}
	var u unix.Utsname
	if unix.Uname(&u) == nil {
		b.Kernel = unix.ByteSliceToString(u.Release[:])
	}
	return b
}
