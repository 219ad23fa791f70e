package provider

import (
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/goverbs/verbs/mmap"
)

// lock is what a queue is locked with while entries are copied: for less than a
// microsecond, mostly without anybody waiting. A [sync.Mutex] takes two
// instructions that lock the bus, and that is most of what polling costs; this
// takes one. Therefore nobody is woken by Unlock: who finds it locked looks
// again, and lets others run in between. Those who keep it for long take
// LockLong, behind which others sleep.
type lock struct {
	held atomic.Uint32
	line sync.Mutex // held by who waits for held, or keeps it for long
}

// Lock locks for a moment.
func (l *lock) Lock() {
	if !l.held.CompareAndSwap(0, 1) {
		l.wait()
	}
}

func (l *lock) wait() {
	l.LockLong()
	l.line.Unlock()
}

// Unlock ends Lock.
func (l *lock) Unlock() { mmap.StoreRelease(&l.held, 0) }

// Waits by turns: looking, letting others run, and sleeping.
const (
	looks  = 100
	yields = 100
	nap    = 20 * time.Microsecond
)

// LockLong locks for a system call or longer.
func (l *lock) LockLong() {
	l.line.Lock()
	for i := 0; !l.held.CompareAndSwap(0, 1); i++ {
		switch {
		case i < looks:
		case i < looks+yields:
			runtime.Gosched()
		default:
			time.Sleep(nap)
		}
	}
}

// UnlockLong ends LockLong.
func (l *lock) UnlockLong() {
	l.Unlock()
	l.line.Unlock()
}

// UnlockIfPanicking, deferred while locked by Lock, keeps a panic from leaving
// the lock to nobody.
func (l *lock) UnlockIfPanicking() {
	if p := recover(); p != nil {
		l.Unlock()
		panic(p)
	}
}
