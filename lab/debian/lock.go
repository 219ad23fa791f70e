package debian

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"time"
)

// tmpPrefix is the prefix of the names of incomplete folders.
const tmpPrefix = "tmp-"

// lock is held while the archive's lists or folders change.
func (a Archive) lock(ctx context.Context) (func(), error) {
	return Lock(ctx, filepath.Join(a.dir(), "lock"))
}

// Lock serialises processes that share the cache. It returns a function that
// unlocks. The kernel releases the lock of a process that dies.
func Lock(ctx context.Context, file string) (func(), error) {
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		return nil, err
	}
	f, err := os.OpenFile(file, os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, err
	}
	// A context cannot interrupt flock, so the lock is polled; the work that it
	// guards takes far longer.
	for {
		err := flock(f)
		if err == nil {
			return func() { f.Close() }, nil
		}
		if !errors.Is(err, syscall.EWOULDBLOCK) && !errors.Is(err, syscall.EINTR) {
			f.Close()
			return nil, fmt.Errorf("lock %s: %w", file, err)
		}
		select {
		case <-ctx.Done():
			f.Close()
			return nil, fmt.Errorf("lock %s: %w", file, ctx.Err())
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// removeStale removes incomplete folders of processes that died. The caller holds the
// lock, so no other process is filling one.
func (a Archive) removeStale() {
	left, _ := filepath.Glob(filepath.Join(a.dir(), tmpPrefix+"*"))
	for _, dir := range left {
		os.RemoveAll(dir)
	}
}
