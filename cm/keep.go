package cm

import (
	"sync"
	"time"
)

// keepFor is how long what connections share stays open when the last of them
// is gone. Opening it anew takes longer than making a connection, and programs
// make one after the other.
const keepFor = 250 * time.Millisecond

// users counts the users of something that is shared.
type users struct {
	n    int
	idle *time.Timer
}

// enter adds a user. The caller holds the lock that leave is given.
func (u *users) enter() {
	u.n++
	if u.idle != nil {
		u.idle.Stop()
	}
}

// leave takes one away; a while after the last, drop is called with lock held.
// The caller holds lock.
func (u *users) leave(lock sync.Locker, drop func()) {
	if u.n--; u.n > 0 {
		return
	}
	var idle *time.Timer
	idle = time.AfterFunc(keepFor, func() {
		lock.Lock()
		defer lock.Unlock()
		if u.n == 0 && u.idle == idle { // Stop may have come too late
			drop()
		}
	})
	u.idle = idle
}
