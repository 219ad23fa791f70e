package hipobj

import (
	"errors"
	"fmt"
)

// state is who has a session: the server's program, the client, or nobody.
type state uint8

const (
	staging   state = iota // the caller of Server.Prepare has it
	prepared               // the client may send READY
	moving                 // Session.Move runs
	stopping               // the same, which will fail
	moved                  // the caller of Move has it
	committed              // the same, and it is too late to cancel
	ended                  // cancelled while the program has it, which will close it
	closed                 // its memory is free
	numStates
)

func (s state) String() string {
	return [...]string{"being staged", "prepared", "being moved", "being cancelled", "moved", "committed", "cancelled", "closed"}[s]
}

// event is what happens to a session.
type event uint8

const (
	publish event = iota // Session.Publish
	move                 // Session.Move begins
	again                // it has found the client's queue pair not ready
	done                 // it has moved the bytes
	fail                 // it has not
	commit               // Session.Commit
	cancel               // Session.Cancel, a deadline, or Server.Close
	finish               // Session.Close
	numEvents
)

func (e event) String() string {
	return [...]string{"publish", "move", "retry", "complete", "fail", "commit", "cancel", "close"}[e]
}

// none is the next state of what is an error.
const none = numStates

// transitions has the next state by state and event. Memory that the program may be using, in
// staging, moved, committed and ended, is freed by finish alone.
var transitions = [numStates][numEvents]state{
	//          publish   move    again     done   fail    commit     cancel    finish
	staging:   {prepared, none, none, none, none, none, ended, closed},
	prepared:  {none, moving, none, none, none, none, closed, closed},
	moving:    {none, none, prepared, moved, closed, none, stopping, stopping},
	stopping:  {none, none, closed, closed, closed, none, stopping, stopping},
	moved:     {none, none, none, none, none, committed, ended, closed},
	committed: {none, none, none, none, none, none, none, closed},
	ended:     {none, none, none, none, none, none, ended, closed},
	closed:    {none, none, none, none, none, none, closed, closed},
}

// ErrState is returned for calls that a session's state does not allow, such as a second READY
// while the first one runs.
var ErrState = errors.New("wrong state of the session")

// after returns the state after an event.
func (s state) after(e event) (state, error) {
	next := transitions[s][e]
	if next == none {
		return s, fmt.Errorf("%v: the session is %v: %w", e, s, ErrState)
	}
	return next, nil
}
