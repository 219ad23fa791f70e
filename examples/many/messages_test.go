//go:build linux

package main

import (
	"testing"
	"time"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/cm"
	"github.com/goverbs/verbs/internal/labtest"
	"github.com/goverbs/verbs/uverbs"
)

func TestNoConnections(t *testing.T) {
	for _, n := range [][2]int{{0, 1}, {1, 0}} {
		if err := run("", n[0], n[1], true); err == nil {
			t.Errorf("%d connections, %d at a time", n[0], n[1])
		}
	}
}

// TestUnaskedAnswers: a server that answers twice is disconnected, and holds up no other connection of the hub.
func TestUnaskedAnswers(t *testing.T) {
	labtest.Require(t)
	ctx := labtest.Within(t, time.Minute)
	h := labtest.Must(newHub(labtest.Must(uverbs.Open(labtest.RoCE))(t), 8))(t)
	go h.run(ctx)
	var conns []*conn
	for _, answers := range []int{2, 1} {
		c := &conn{answers: make(chan string, 1)}
		conns = append(conns, c)
		_, server := labtest.Connect(ctx, t, labtest.AddrOf(labtest.RoCE)+":0", h.options(c), cm.Options{})
		t.Cleanup(func() { labtest.Check(t, server.Close(), h.remove(c)) })
		for range answers {
			labtest.Must(server.QP.PostSend(verbs.SendWR{Opcode: verbs.OpSend, Inline: []byte("hello")}))(t)
		}
	}
	select {
	case <-conns[1].answers:
	case <-ctx.Done():
		t.Fatal("the second connection has no answer")
	}
	select {
	case <-conns[0].Done():
	case <-ctx.Done():
		t.Fatal("the first connection goes on")
	}
}
