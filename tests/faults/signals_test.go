package faults

import (
	"bytes"
	"os"
	"os/signal"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/goverbs/verbs/internal/labtest"
	"github.com/goverbs/verbs/rsock"
)

// TestSignals makes connections and sends over them while every thread continuously receives
// signals that interrupt system calls. siw's listeners fail permanently when a dial is
// interrupted.
func TestSignals(t *testing.T) {
	labtest.RequireLong(t)
	labtest.Each(t, func(t *testing.T, device string) {
		caught := make(chan os.Signal, 1)
		signal.Notify(caught, unix.SIGUSR1)
		before := labtest.SettledInventory(t) // includes the goroutine for signals
		var wg sync.WaitGroup
		stop := labtest.Signals(os.Getpid(), unix.SIGURG, unix.SIGUSR1)
		l := labtest.Must(rsock.Listen("tcp", labtest.AddrOf(device)+":0"))(t)
		sent := bytes.Repeat([]byte("signals "), 1000)
		wg.Go(func() {
			for {
				c, err := l.Accept()
				if err != nil {
					return // closed
				}
				if _, err := c.Write(sent); err != nil {
					t.Error(err)
				}
				c.Close()
			}
		})
		for i := range 10 {
			c, err := rsock.Dial("tcp", l.Addr().String())
			if err != nil {
				t.Fatalf("dial %d: %v", i, err)
			}
			got := bytes.Buffer{}
			if _, err := got.ReadFrom(c); err != nil || !bytes.Equal(got.Bytes(), sent) {
				t.Fatalf("connection %d: %d bytes, %v", i, got.Len(), err)
			}
			c.Close()
		}
		stop()
		l.Close()
		wg.Wait()
		signal.Stop(caught)
		labtest.CheckLeaks(t, before)
	})
}
