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
	n     int
	since time.Time   // there have been none
	look  *time.Timer // whether that is long enough ago, if it is pending
}

// enter adds a user. The caller holds the lock that leave is given.
func (u *users) enter() { u.n++ }

// leave takes one away; a while after the last, drop is called with lock held.
// The caller holds lock.
func (u *users) leave(lock sync.Locker, drop func()) {
	if u.n--; u.n > 0 {
		return
	}
	u.since = time.Now()
	if u.look != nil {
		return // setting a timer for each connection would cost more than counting
	}
	u.look = time.AfterFunc(keepFor, func() {
		lock.Lock()
		defer lock.Unlock()
		left := keepFor - time.Since(u.since)
		switch {
		case u.n > 0:
			u.look = nil
		case left > 0:
			u.look.Reset(left)
		default:
			u.look = nil
			drop()
		}
	})
}
