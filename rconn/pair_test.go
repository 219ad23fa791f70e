//go:build linux

package rconn

import (
	"context"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/internal/labtest"
	"github.com/goverbs/verbs/uverbs"
)

// testContext returns a context that ends a test that hangs.
func testContext(t testing.TB) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 90*time.Second)
	t.Cleanup(cancel)
	return ctx
}

// ended returns a context that has ended.
func ended(t testing.TB) context.Context {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	return ctx
}

// newPair makes a connection of a device with itself: a dialed, b accepted.
func newPair(t testing.TB, device string, oa, ob Options) (a, b *Conn) {
	t.Helper()
	ctx := testContext(t)
	l := labtest.Must(Listen(ctx, labtest.AddrOf(device)+":0"))(t)
	defer l.Close()
	accepted := make(chan error, 1)
	go func() {
		r, err := l.Accept(ctx)
		if err == nil {
			b, err = r.Accept(ctx, ob)
		}
		accepted <- err
	}()
	a = labtest.Made(dial(ctx, l.Addr().String(), oa))(t)
	if err := <-accepted; err != nil {
		t.Fatal(err)
	}
	labtest.Close(t, b)
	return a, b
}

// advertise allocates a region of from and advertises it to to, which expects it.
func advertise(t testing.TB, from, to *Conn, size int, access verbs.Access) (*LocalRegion, RemoteRegion) {
	t.Helper()
	r := labtest.Must(from.Alloc(size, access))(t)
	check(t, from.Post(Advert(1, r.All()).With(0, verbs.SendSignaled)))
	await(t, from, Sends, 1)
	return r, labtest.Must(to.AwaitAdvert(testContext(t)))(t)
}

// await takes n completions, which must be successful.
func await(t testing.TB, c *Conn, d Direction, n int) []verbs.WC {
	t.Helper()
	wcs := make([]verbs.WC, n)
	check(t, c.Await(testContext(t), d, wcs))
	for i := range wcs {
		check(t, wcs[i].Err())
	}
	return wcs
}

func check(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// fill fills b with random bytes that depend on seed.
func fill(b []byte, seed uint64) []byte {
	r := rand.NewPCG(seed, 1)
	for i := range b {
		b[i] = byte(r.Uint64())
	}
	return b
}

// dial connects with options.
func dial(ctx context.Context, addr string, opt Options) (*Conn, error) {
	return (&Dialer{Options: opt, ConnectTimeout: 2 * time.Minute}).Dial(ctx, addr) // registering 4 GiB takes long on a machine with other work
}

// allocIn allocates a region that connections in pd share.
func allocIn(pd *uverbs.PD, size int, opt uverbs.MROptions) (*LocalRegion, error) {
	mr, err := pd.AllocMR(size, ReadWrite, opt)
	if err != nil {
		return nil, err
	}
	return NewRegion(pd, mr, ReadWrite), nil
}
