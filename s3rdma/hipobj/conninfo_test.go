//go:build linux

package hipobj

import (
	"context"
	"os"
	"strings"
	"sync"
	"testing"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/internal/labtest"
)

// TestConns finds out what a PUT waits for, in each of its states.
func TestConns(t *testing.T) {
	page := string(labtest.Must(os.ReadFile("../../docs/s3.md"))(t))
	_, s, c := newHosts(t, Options{})
	waits := func(state, what string) {
		t.Helper()
		if !strings.Contains(page, "`"+what+"`") {
			t.Errorf("docs/s3.md does not explain %q", what)
		}
		labtest.Until(t, "the session to wait for "+what, func() bool {
			all := s.Conns()
			return len(all) == 1 && all[0].State == state && all[0].Waits[0].For == what && !all[0].Waits[0].Since.Before(all[0].Since)
		})
		if i := s.Conns()[0]; i.Layer != "hipobj" || i.Local != serverAddr || i.Remote != clientAddr || i.QPNum == 0 {
			t.Errorf("%+v", i)
		}
	}
	entered, stored := make(chan bool), make(chan bool)
	goOn := sync.OnceFunc(func() { close(stored) })
	defer goOn()
	s.store.onPut = func(context.Context, []byte) error {
		entered <- true
		<-stored
		return nil
	}
	x, _ := s.prepared(t, c, Put, "/b/k", c.memory(t, make([]byte, 100)))
	waits("prepared", "READY of the client")
	answer := make(chan error, 1)
	go func() {
		_, err := x.send(t.Context(), "ready")
		answer <- err
	}()
	waits("being moved", "completions of the device")
	labtest.Check(t, x.post(t, verbs.SendWR{Opcode: verbs.OpRDMAWriteImm, Imm: x.Cookie, RemoteAddr: x.addr, RKey: x.rkey}))
	<-entered
	waits("committed", "the server's program, which has the session")
	goOn()
	labtest.Check(t, <-answer)
	if all := s.Conns(); len(all) != 0 {
		t.Errorf("after the answer: %+v", all)
	}
}
