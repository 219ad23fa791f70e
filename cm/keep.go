package cm

import (
	"sync"
	"time"

	"github.com/goverbs/verbs/internal/sys"
)

// keepFor is how long what connections share stays open when the last of them
// is gone. Opening it anew takes longer than making a connection, and programs
// make one after the other.
const keepFor = 250 * time.Millisecond

// quiet is how long ago something was last used.
type quiet struct {
	since time.Duration // by sys.Monotonic
	look  *time.Timer   // whether that is keepFor ago, if it is pending
}

// touch notes a use, and says whether nobody waits yet for there to be none. The
// caller holds the lock that watch is given.
func (q *quiet) touch() bool {
	q.since = sys.Monotonic()
	return q.look == nil // setting a timer for each connection would cost more than counting
}

// watch has over called, with lock held, when there has been no use for keepFor.
// The caller holds lock.
func (q *quiet) watch(lock sync.Locker, over func()) {
	q.look = time.AfterFunc(keepFor, func() {
		lock.Lock()
		defer lock.Unlock()
		if left := keepFor - (sys.Monotonic() - q.since); left > 0 {
			q.look.Reset(left)
			return
		}
		q.look = nil
		over()
	})
}

// users counts the users of something that is shared.
type users struct {
	n    int
	last quiet // when the last of them left
}

// enter adds a user. The caller holds the lock that leave is given.
func (u *users) enter() { u.n++ }

// leave takes one away; a while after the last, drop is called with lock held.
// The caller holds lock.
func (u *users) leave(lock sync.Locker, drop func()) {
	if u.n--; u.n == 0 && u.last.touch() {
		u.last.watch(lock, func() {
			if u.n == 0 {
				drop()
			}
		})
	}
}
