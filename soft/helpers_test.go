package soft_test

import (
	"io"
	"log/slog"
	"runtime"
	"time"
)

// collect collects garbage and lets cleanups run.
func collect() {
	runtime.GC()
	time.Sleep(time.Millisecond)
}

func textLogger(w io.Writer) *slog.Logger { return slog.New(slog.NewTextHandler(w, nil)) }
