//go:build linux

package session

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/goverbs/verbs/lab/debian"
)

// TestTurns checks that no more machines than allowed have a turn, and that others wait.
func TestTurns(t *testing.T) {
	t.Setenv("VERBS_CACHE", t.TempDir())
	take := func(n int) func() {
		done, err := takeTurn(t.Context(), n)
		if err != nil {
			t.Fatal(err)
		}
		return done
	}
	first, second := take(2), take(2)
	ctx, cancel := context.WithTimeoutCause(t.Context(), 300*time.Millisecond, errors.New("too late"))
	defer cancel()
	if _, err := takeTurn(ctx, 2); err == nil || err.Error() != "wait for a turn: too late" {
		t.Error(err)
	}
	take(0)()
	first()
	take(2)() // the one who was too late is not waited for
	second()
	take(-1)()
}

// TestTurnsInOrder checks that turns are in the order of tickets, and that the dead have none.
func TestTurnsInOrder(t *testing.T) {
	t.Setenv("VERBS_CACHE", t.TempDir())
	dir := filepath.Join(debian.CacheDir(), "turns")
	var tickets []*ticket
	ahead := func(i int) []string {
		t.Helper()
		pids, err := tickets[i].ahead(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return pids
	}
	for range 12 { // more than one digit
		n, err := newTicket(t.Context(), dir)
		if err != nil {
			t.Fatal(err)
		}
		tickets = append(tickets, n)
	}
	own := strconv.Itoa(os.Getpid())
	for i := range tickets {
		if got, want := ahead(i), slices.Repeat([]string{own}, i); !slices.Equal(got, want) {
			t.Errorf("%d waits for %q", i, got)
		}
	}
	tickets[1].file.Close() // as if its process had been killed
	tickets[4].discard()
	if got := len(ahead(11)); got != 9 {
		t.Errorf("%d are ahead, want 9", got)
	}
	if _, err := os.Stat(tickets[1].file.Name()); err == nil {
		t.Error("the ticket of the dead is still there")
	}
	tickets[0].discard()
	order := make(chan int, len(tickets))
	for _, i := range []int{9, 3, 2} { // not in order
		go func() {
			for len(must(tickets[i].ahead(t.Context()))) > 0 {
				time.Sleep(time.Millisecond)
			}
			order <- i
			tickets[i].discard()
		}()
	}
	for _, i := range []int{5, 6, 7, 8, 10, 11} {
		tickets[i].discard()
	}
	if got := fmt.Sprint(<-order, <-order, <-order); got != "2 3 9" {
		t.Errorf("turns in the order %s", got)
	}
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}
