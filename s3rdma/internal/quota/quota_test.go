package quota

import (
	"errors"
	"fmt"
	"math"
	"sync"
	"testing"
)

func TestTakeNamesTheLimit(t *testing.T) {
	q := New("Sessions", Limits{Sessions: 3, Bytes: 100, AccountSessions: 2, AccountBytes: 60})
	take := func(account string, bytes int64) func() {
		t.Helper()
		release, err := q.Take(account, bytes)
		if err != nil {
			t.Fatal(err)
		}
		return release
	}
	refused := func(account string, bytes int64, want Error, never bool) {
		t.Helper()
		_, err := q.Take(account, bytes)
		var e *Error
		if !errors.As(err, &e) || *e != want || e.Never() != never {
			t.Errorf("%s takes %d bytes: %v, want %v", account, bytes, err, &want)
		}
	}
	refused("a", 61, Error{"AccountBytes", "a", 0, 61, 60}, true)
	refused("a", math.MaxInt64, Error{"AccountBytes", "a", 0, math.MaxInt64, 60}, true)
	refused("a", -1, Error{"AccountBytes", "a", 0, -1, 60}, false)
	a1, a2 := take("a", 30), take("a", 30)
	refused("a", 0, Error{"AccountSessions", "a", 2, 1, 2}, false)
	a2()
	a2() // without effect
	refused("a", 31, Error{"AccountBytes", "a", 30, 31, 60}, false)
	b1 := take("b", 60)
	refused("c", 11, Error{"Bytes", "", 90, 11, 100}, false)
	c1 := take("c", 10)
	refused("d", 0, Error{"Sessions", "", 3, 1, 3}, false)
	a1()
	b1()
	c1()
	if n, bytes := q.InUse(); n != 0 || bytes != 0 || len(q.accounts) != 0 {
		t.Errorf("%d sessions, %d bytes and %d accounts are left", n, bytes, len(q.accounts))
	}
}

func TestDefaults(t *testing.T) {
	for _, c := range []struct{ in, want Limits }{
		{Limits{}, Limits{256, 1 << 30, 64, 1 << 28}},
		{Limits{Sessions: 2, Bytes: 2}, Limits{2, 2, 1, 1}},
		{Limits{1, 2, 3, 4}, Limits{1, 2, 3, 4}},
	} {
		if got := c.in.withDefaults(); got != c.want {
			t.Errorf("%+v: %+v, want %+v", c.in, got, c.want)
		}
	}
}

func TestTakeByManyGoroutines(t *testing.T) {
	const limit = 4
	q := New("Sessions", Limits{Sessions: limit, Bytes: 1000, AccountSessions: 3})
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			for range 500 {
				release, err := q.Take(fmt.Sprint(i%3), 10)
				if n, bytes := q.InUse(); n > limit || bytes != int64(10*n) {
					t.Errorf("%d sessions with %d bytes", n, bytes)
				}
				if err == nil {
					release()
				}
			}
		})
	}
	wg.Wait()
	if n, _ := q.InUse(); n != 0 || len(q.accounts) != 0 {
		t.Errorf("%d sessions and %d accounts are left", n, len(q.accounts))
	}
}
