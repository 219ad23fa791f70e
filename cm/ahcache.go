package cm

import (
	"container/list"
	"context"
	"errors"
	"sync"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/internal/host"
	"github.com/goverbs/verbs/uverbs"
)

const (
	defaultMaxSenders = 1024
	// maxResolutions is the number of address handles that are created at a time: each blocks a
	// thread in the kernel until the address answers.
	maxResolutions = 64
)

// ahCache is the LRU cache of address handles for replies.
type ahCache struct {
	create    func(header) (*uverbs.AH, error)
	resolving chan struct{} // holds a token for each create
	creating  sync.WaitGroup

	mu       sync.Mutex
	limit    int
	byHeader map[header]*cachedAH
	lru      list.List // *cachedAH, the most recently used last
	closed   bool
}

// cachedAH is an address handle that exists or is being created.
type cachedAH struct {
	header header
	done   chan struct{} // closed when ah or err is set
	ah     *uverbs.AH
	err    error
	elem   *list.Element // of ahCache.lru
	users  int
}

func newAHCache(create func(header) (*uverbs.AH, error)) *ahCache {
	return &ahCache{create: create, resolving: make(chan struct{}, maxResolutions), limit: defaultMaxSenders, byHeader: map[header]*cachedAH{}}
}

// acquire returns the handle of a sender, which stays open until release.
func (c *ahCache) acquire(ctx context.Context, h header) (*cachedAH, error) {
	k, err := c.find(ctx, h)
	if err != nil {
		return nil, err
	}
	select {
	case <-k.done:
		err = k.err
	case <-ctx.Done():
		err = host.Ended(ctx)
	}
	if err != nil {
		c.release(k)
		return nil, err
	}
	return k, nil
}

// find returns the handle of a sender and counts a user of it. If there is none, it
// starts to make one.
func (c *ahCache) find(ctx context.Context, h header) (*cachedAH, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.byHeader[h] == nil {
		c.mu.Unlock()
		var err error
		select {
		case c.resolving <- struct{}{}:
		case <-ctx.Done():
			err = host.Ended(ctx)
		}
		c.mu.Lock()
		switch {
		case err != nil:
			return nil, err
		case c.closed || c.byHeader[h] != nil:
			<-c.resolving
		default:
			k := &cachedAH{header: h, done: make(chan struct{})}
			c.byHeader[h] = k
			c.creating.Go(func() { c.resolve(k) })
		}
	}
	if c.closed {
		return nil, verbs.ErrClosed
	}
	k := c.byHeader[h]
	k.users++
	if k.elem != nil {
		c.lru.MoveToBack(k.elem)
	}
	return k, nil
}

func (c *ahCache) resolve(k *cachedAH) {
	ah, err := c.create(k.header)
	<-c.resolving
	c.mu.Lock()
	defer c.mu.Unlock()
	k.ah, k.err = ah, err
	if err != nil {
		delete(c.byHeader, k.header)
	} else {
		k.elem = c.lru.PushBack(k)
		c.evict()
	}
	close(k.done)
}

func (c *ahCache) release(k *cachedAH) {
	c.mu.Lock()
	defer c.mu.Unlock()
	k.users--
	c.evict()
}

// setLimit sets the size of the cache and evicts handles beyond it.
func (c *ahCache) setLimit(limit int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.limit = limit
	c.evict()
}

// evict evicts unused handles, the least recently used first, until no more than limit
// are left. The caller holds mu.
func (c *ahCache) evict() {
	for at := c.lru.Front(); at != nil && c.lru.Len() > c.limit; {
		k := at.Value.(*cachedAH)
		at = at.Next()
		if k.users == 0 {
			c.remove(k)
		}
	}
}

// remove closes a handle. The caller holds mu.
func (c *ahCache) remove(k *cachedAH) error {
	if err := k.ah.Close(); err != nil {
		return err
	}
	c.lru.Remove(k.elem)
	delete(c.byHeader, k.header)
	return nil
}

// close waits for handles that are being made, and closes all. The QP must be closed before. After
// a failure close can be called again.
func (c *ahCache) close() (err error) {
	c.mu.Lock()
	c.closed = true
	c.mu.Unlock()
	c.creating.Wait()
	c.mu.Lock()
	defer c.mu.Unlock()
	for at := c.lru.Front(); at != nil; {
		k := at.Value.(*cachedAH)
		at = at.Next()
		err = errors.Join(err, c.remove(k))
	}
	return err
}
