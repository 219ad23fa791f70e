// Command valkey puts load on a valkey-server, over RDMA or TCP, with the clients valkey-go and
// go-redis, and checks every answer:
//
//	valkey-server --protected-mode no --rdma-bind 10.9.0.1 --rdma-port 6379 &
//	valkey -addr 10.9.0.1:6379 -clients 4 -for 10s
//
// The server must be built with RDMA (make BUILD_RDMA=yes). It needs an InfiniBand or RoCE device.
package main

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/valkey-io/valkey-go"

	"github.com/goverbs/verbs/examples/valkey/valkeyrdma"
	_ "github.com/goverbs/verbs/soft" // VERBS_SOFT makes a device in user space
)

// store is a client of the server.
type store struct {
	set   func(ctx context.Context, key string, value []byte) error
	get   func(ctx context.Context, key string) ([]byte, error)
	close func()
}

type dialFunc func(ctx context.Context, network, addr string) (net.Conn, error)

// newValkeyStore uses valkey-go, whose requests share one connection.
func newValkeyStore(addr string, dial dialFunc) (store, error) {
	c, err := valkey.NewClient(valkey.ClientOption{
		InitAddress: []string{addr}, DisableCache: true, ForceSingleClient: true,
		DialCtxFn: func(ctx context.Context, addr string, _ *net.Dialer, _ *tls.Config) (net.Conn, error) {
			return dial(ctx, "tcp", addr)
		},
	})
	if err != nil {
		return store{}, err
	}
	return store{func(ctx context.Context, key string, value []byte) error {
		return c.Do(ctx, c.B().Set().Key(key).Value(valkey.BinaryString(value)).Build()).Error()
	}, func(ctx context.Context, key string) ([]byte, error) {
		return c.Do(ctx, c.B().Get().Key(key).Build()).AsBytes()
	}, c.Close}, nil
}

// newRedisStore uses go-redis, which has a pool of connections.
func newRedisStore(addr string, dial dialFunc) (store, error) {
	c := redis.NewClient(&redis.Options{Addr: addr, Dialer: dial})
	return store{func(ctx context.Context, key string, value []byte) error {
		return c.Set(ctx, key, value, 0).Err()
	}, func(ctx context.Context, key string) ([]byte, error) {
		return c.Get(ctx, key).Bytes()
	}, func() { c.Close() }}, nil
}

func main() {
	addr := flag.String("addr", "10.9.0.1:6379", "server")
	overTCP := flag.Bool("tcp", false, "use TCP instead of RDMA")
	clients := flag.Int("clients", 4, "goroutines for each client library")
	limit := flag.Int("size", 64<<10, "most bytes of a value")
	duration := flag.Duration("for", 10*time.Second, "duration")
	flag.Parse()
	dial := dialFunc(valkeyrdma.DialContext)
	if *overTCP {
		dial = new(net.Dialer).DialContext
	}
	if err := run(*addr, dial, *clients, *limit, *duration); err != nil {
		fmt.Fprintln(os.Stderr, "valkey:", err)
		os.Exit(1)
	}
}

// run uses both clients at the same time, and prints the latencies.
func run(addr string, dial dialFunc, clients, limit int, duration time.Duration) error {
	ctx, cancel := context.WithTimeout(context.Background(), duration)
	defer cancel()
	var all sync.WaitGroup
	var mu sync.Mutex
	var failed error
	for name, open := range map[string]func(string, dialFunc) (store, error){"valkey-go": newValkeyStore, "go-redis": newRedisStore} {
		s, err := open(addr, dial)
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		defer s.close()
		var users sync.WaitGroup
		var took []time.Duration
		for i := range clients {
			users.Go(func() {
				times, err := use(ctx, s, fmt.Sprint(name, i), limit)
				mu.Lock()
				defer mu.Unlock()
				took = append(took, times...)
				if err != nil {
					failed = errors.Join(failed, fmt.Errorf("%s: %w", name, err))
					cancel()
				}
			})
		}
		all.Go(func() {
			users.Wait()
			mu.Lock()
			defer mu.Unlock()
			slices.Sort(took)
			if n := len(took); n > 0 {
				fmt.Printf("%s: %d answers, half within %v, 99 of 100 within %v\n", name, n, took[n/2], took[n*99/100])
			}
		})
	}
	all.Wait()
	return failed
}

// use sets and gets a key with random values until ctx ends, and returns how long each took.
func use(ctx context.Context, s store, key string, limit int) (took []time.Duration, err error) {
	value := make([]byte, limit)
	for i := range value {
		value[i] = byte(rand.Uint32())
	}
	// Requests are not cut off at the end, so that each has its answer.
	whole := context.WithoutCancel(ctx)
	for ctx.Err() == nil {
		n := rand.IntN(limit + 1)
		if rand.IntN(2) == 0 {
			n >>= rand.IntN(12) // most are small
		}
		v := value[rand.IntN(limit-n+1):][:n]
		start := time.Now()
		if err := s.set(whole, key, v); err != nil {
			return took, fmt.Errorf("set %d bytes: %w", n, err)
		}
		middle := time.Now()
		got, err := s.get(whole, key)
		if err != nil {
			return took, fmt.Errorf("get %d bytes: %w", n, err)
		}
		if !bytes.Equal(got, v) {
			return took, fmt.Errorf("got %d bytes, which are not the %d that were set", len(got), n)
		}
		took = append(took, middle.Sub(start), time.Since(middle))
	}
	return took, nil
}
