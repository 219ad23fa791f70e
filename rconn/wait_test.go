package rconn

import (
	"context"
	"testing"
)

// labelled is a context that cannot be compared: its interface holds a map.
type labelled struct {
	context.Context
	label any
}

// TestFollowContext checks that a sleeper follows one context at a time, whatever
// its type, and the same one only once.
func TestFollowContext(t *testing.T) {
	first, cancel := context.WithCancel(t.Context())
	defer cancel()
	woken := make(chan struct{}, 2)
	s := &sleeper{wake: func() { woken <- struct{}{} }}
	s.follow(labelled{first, map[string]int{}})
	s.follow(labelled{first, map[string]int{}})
	cancel()
	<-woken
	s.follow(context.Background()) // never ends
	second, cancel := context.WithCancel(t.Context())
	s.follow(labelled{second, map[string]int{}})
	cancel()
	<-woken
	s.forget()
	if len(woken) > 0 {
		t.Error("a context that was followed twice wakes the sleeper twice")
	}
}
