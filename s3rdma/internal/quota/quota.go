// Package quota limits how many transfers a server has at a time, and the bytes of their buffers, in
// all and for each account: one account, and all of them together, cost bounded memory.
package quota

import (
	"fmt"
	"sync"
)

// Limits are how many sessions a server has at a time, and how much registered memory they hold.
type Limits struct {
	Sessions        int   // 0 is 256
	Bytes           int64 // 0 is 1 GiB
	AccountSessions int   // of one account; 0 is a quarter of Sessions
	AccountBytes    int64 // of one account; 0 is a quarter of Bytes
}

func (l Limits) withDefaults() Limits {
	if l.Sessions == 0 {
		l.Sessions = 256
	}
	if l.Bytes == 0 {
		l.Bytes = 1 << 30
	}
	if l.AccountSessions == 0 {
		l.AccountSessions = max(l.Sessions/4, 1)
	}
	if l.AccountBytes == 0 {
		l.AccountBytes = max(l.Bytes/4, 1)
	}
	return l
}

// Error reports the limit that a session would exceed.
type Error struct {
	Limit     string // the option
	Account   string // "" if the limit is of all accounts
	Used, Add int64
	Max       int64
}

func (e *Error) Error() string {
	of, do := "all accounts", "try again when other transfers have ended"
	if e.Account != "" {
		of = fmt.Sprintf("account %.64q", e.Account)
	}
	if e.Never() {
		do = "use HTTP, or raise the limit"
	}
	return fmt.Sprintf("limit %s of %s is %d, %d in use, %d more asked for: %s", e.Limit, of, e.Max, e.Used, e.Add, do)
}

// Never reports whether the session exceeds the limit even if there is no other one.
func (e *Error) Never() bool { return e.Add > e.Max }

type usage struct {
	sessions int
	bytes    int64
}

// Quota counts sessions. Its methods may be called by several goroutines.
type Quota struct {
	name     string // of the option for sessions
	limits   Limits
	mu       sync.Mutex
	all      usage
	accounts map[string]usage // of those that have sessions
}

// New makes a Quota. The option that limits its sessions has a name.
func New(name string, l Limits) *Quota {
	return &Quota{name: name, limits: l.withDefaults(), accounts: map[string]usage{}}
}

// Take counts a session with a buffer of so many bytes until release is called, which may be called
// again. The error is an [*Error].
func (q *Quota) Take(account string, bytes int64) (release func(), err error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	l, u := q.limits, q.accounts[account]
	// The account's own limits come first: their error is the one that the account can do something about.
	for _, e := range []Error{
		{"Account" + q.name, account, int64(u.sessions), 1, int64(l.AccountSessions)},
		{"AccountBytes", account, u.bytes, bytes, l.AccountBytes},
		{q.name, "", int64(q.all.sessions), 1, int64(l.Sessions)},
		{"Bytes", "", q.all.bytes, bytes, l.Bytes},
	} {
		if e.Add < 0 || e.Add > e.Max-e.Used {
			return nil, &e
		}
	}
	q.add(account, 1, bytes)
	return sync.OnceFunc(func() {
		q.mu.Lock()
		defer q.mu.Unlock()
		q.add(account, -1, -bytes)
	}), nil
}

// add changes the counts with mu held. An account without sessions has no entry.
func (q *Quota) add(account string, sessions int, bytes int64) {
	u := q.accounts[account]
	u.sessions, u.bytes = u.sessions+sessions, u.bytes+bytes
	if u.sessions == 0 {
		delete(q.accounts, account)
	} else {
		q.accounts[account] = u
	}
	q.all.sessions, q.all.bytes = q.all.sessions+sessions, q.all.bytes+bytes
}

// InUse returns the number of sessions, and the bytes of their buffers.
func (q *Quota) InUse() (sessions int, bytes int64) {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.all.sessions, q.all.bytes
}
