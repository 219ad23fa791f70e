package cli

import (
	"runtime"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/internal/sys"
)

// Build describes the program and its system in a report.
type Build struct {
	Version string `json:"version"`
	Go      string `json:"go"`
	Kernel  string `json:"kernel,omitempty"`
}

// ThisBuild describes this program.
func ThisBuild() Build {
	return Build{Version: verbs.Version, Go: runtime.Version(), Kernel: sys.KernelRelease()}
}
