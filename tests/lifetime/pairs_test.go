package lifetime

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"maps"
	"math/rand/v2"
	"net"
	"reflect"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/internal/labtest"
	"github.com/goverbs/verbs/uverbs"
)

// kinds create an object of each type, with parents from an objectSet. Close fails with ErrInUse
// until free is called, which is nil if nothing can depend on the object.
var kinds = map[string]func(t *testing.T, s *objectSet) (o closer, free func() error){
	"Context": func(t *testing.T, s *objectSet) (closer, func() error) {
		ctx := labtest.Must(uverbs.Open(s.ctx.Device().Name))(t)
		return ctx, labtest.Must(ctx.AllocPD())(t).Close
	},
	"PD": func(t *testing.T, s *objectSet) (closer, func() error) {
		pd := labtest.Must(s.ctx.AllocPD())(t)
		return pd, labtest.Must(pd.AllocMR(64, 0, uverbs.MROptions{}))(t).Close
	},
	"MR": func(t *testing.T, s *objectSet) (closer, func() error) {
		return labtest.Must(s.pd.AllocMR(4096, verbs.AccessLocalWrite, uverbs.MROptions{}))(t), nil
	},
	"MW": func(t *testing.T, s *objectSet) (closer, func() error) {
		if s.mw == nil {
			return nil, nil
		}
		return labtest.Must(s.pd.AllocMW(verbs.MWType2))(t), nil
	},
	"CompChannel": func(t *testing.T, s *objectSet) (closer, func() error) {
		ch := labtest.Must(s.ctx.CreateCompChannel())(t)
		return ch, labtest.Must(s.ctx.CreateCQ(uverbs.CQOptions{Depth: 4, Channel: ch}))(t).Close
	},
	"CQ": func(t *testing.T, s *objectSet) (closer, func() error) {
		cq := labtest.Must(s.ctx.CreateCQ(uverbs.CQOptions{Depth: 4, Channel: s.ch}))(t)
		return cq, makeQP(t, s, uverbs.QPOptions{SendCQ: cq, RecvCQ: s.cq}).Close
	},
	"CQ without channel": func(t *testing.T, s *objectSet) (closer, func() error) {
		cq := labtest.Must(s.ctx.CreateCQ(uverbs.CQOptions{Depth: 4}))(t)
		return cq, makeQP(t, s, uverbs.QPOptions{SendCQ: s.cq, RecvCQ: cq}).Close
	},
	"SRQ": func(t *testing.T, s *objectSet) (closer, func() error) {
		if s.srq == nil {
			return nil, nil
		}
		srq := labtest.Must(s.pd.CreateSRQ(uverbs.SRQOptions{MaxWR: 8, MaxSGE: 1}))(t)
		return srq, makeQP(t, s, uverbs.QPOptions{SendCQ: s.cq, RecvCQ: s.cq, SRQ: srq}).Close
	},
	"QP": func(t *testing.T, s *objectSet) (closer, func() error) {
		return makeQP(t, s, uverbs.QPOptions{SendCQ: s.cq, RecvCQ: s.cq}), nil
	},
	"QP with its own CQ": func(t *testing.T, s *objectSet) (closer, func() error) {
		return makeQP(t, s, uverbs.QPOptions{}), nil
	},
	"Arena": func(t *testing.T, s *objectSet) (closer, func() error) {
		a := labtest.Must(s.pd.AllocArena(8<<10, verbs.AccessLocalWrite, uverbs.ArenaOptions{}))(t)
		b := labtest.Must(a.TryGet(100))(t)
		return a, func() error { b.Put(); return nil }
	},
	"AH": func(t *testing.T, s *objectSet) (closer, func() error) {
		if s.ah == nil {
			return nil, nil
		}
		return labtest.Must(s.pd.CreateAH(s.ah.Attr()))(t), nil
	},
}

func makeQP(t *testing.T, s *objectSet, opt uverbs.QPOptions) *uverbs.QP {
	opt.Cap = verbs.QPCap{MaxSendWR: 2, MaxRecvWR: 2, MaxSendSGE: 1, MaxRecvSGE: 1}
	return labtest.Must(s.pd.CreateQP(opt))(t)
}

// TestKinds checks that kinds contains every type that methods of the others create.
func TestKinds(t *testing.T) {
	close := reflect.TypeFor[closer]()
	seen := map[reflect.Type]bool{}
	var visit func(reflect.Type)
	visit = func(typ reflect.Type) {
		if seen[typ] || !typ.Implements(close) {
			return
		}
		seen[typ] = true
		if kinds[typ.Elem().Name()] == nil {
			t.Errorf("kinds has no %v", typ)
		}
		for i := range typ.NumMethod() {
			for out := range typ.Method(i).Type.Outs() {
				visit(out)
			}
		}
	}
	visit(reflect.TypeFor[*uverbs.Context]())
	if len(seen) < 9 {
		t.Errorf("only %d types were found", len(seen))
	}
}

// TestPairs runs every two methods of every object concurrently with each other and with
// Close: first while Close fails because the object is in use, then while it succeeds. No
// call may block another forever.
func TestPairs(t *testing.T) {
	labtest.EachClean(t, func(t *testing.T, device string) {
		s := newObjectSet(t, device)
		defer s.close(t)
		args, release := argsByType(t, device)
		defer release()
		args[reflect.TypeFor[uverbs.QPOptions]()] = uverbs.QPOptions{SendCQ: s.cq, RecvCQ: s.cq}
		args[reflect.TypeFor[time.Time]()] = time.Now()
		for name, makeOne := range kinds {
			o, free := makeOne(t, s)
			if o == nil {
				continue
			}
			if free != nil {
				check(t, free())
			}
			check(t, o.Close())
			methods := safeMethods(o, s)
			t.Run(name, func(t *testing.T) {
				for i, a := range methods {
					for _, b := range methods[i:] {
						panicOnHang(a+" beside "+b, func() { callConcurrently(t, s, makeOne, a, b, args) })
					}
				}
			})
		}
	})
}

// safeMethods returns the names of an object's methods except Close and those that may not
// be called concurrently with others, or not without a memory window.
func safeMethods(o closer, s *objectSet) (names []string) {
	exclusive := map[string]bool{
		"MR.Rereg":  true,
		"MR.Word":   true, // panics after Close
		"MR.Word64": true,
		"QP.BindMW": s.mw == nil,
	}
	typ := reflect.TypeOf(o)
	for i := range typ.NumMethod() {
		name := typ.Method(i).Name
		if name != "Close" && !exclusive[typ.Elem().Name()+"."+name] {
			names = append(names, name)
		}
	}
	return names
}

func callConcurrently(t *testing.T, s *objectSet, makeOne func(*testing.T, *objectSet) (closer, func() error), a, b string, args map[reflect.Type]any) {
	o, free := makeOne(t, s)
	const calls = 4
	// Each method has been called once when both returns.
	both := func() *sync.WaitGroup {
		var first, all sync.WaitGroup
		for _, name := range []string{a, b} {
			first.Add(1)
			all.Go(func() {
				for i := range calls {
					err := callOnce(reflect.ValueOf(o), name, args)
					if i == 0 {
						first.Done()
					}
					if errors.Is(err, net.ErrClosed) {
						return
					}
				}
			})
		}
		first.Wait()
		return &all
	}
	if free != nil {
		var done atomic.Bool
		var closing sync.WaitGroup
		closing.Go(func() {
			for !done.Load() {
				if err := o.Close(); !errors.Is(err, verbs.ErrInUse) {
					t.Errorf("%s and %s: Close of what is in use: %v", a, b, err)
					return
				}
			}
		})
		both().Wait()
		done.Store(true)
		closing.Wait()
		check(t, free())
	}
	calling := both()
	closeUnused(t, o)
	calling.Wait()
	closeUnused(t, o)
}

// closeUnused closes o as soon as all objects created from it have been closed.
func closeUnused(t *testing.T, o closer) {
	for {
		err := o.Close()
		if err == nil {
			return
		}
		if !errors.Is(err, verbs.ErrInUse) {
			t.Error(err)
			return
		}
		runtime.Gosched()
	}
}

// callOnce calls a method, closes the objects that it creates, and returns its error.
func callOnce(o reflect.Value, name string, args map[reflect.Type]any) (err error) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Millisecond)
	defer cancel()
	args = maps.Clone(args)
	args[reflect.TypeFor[context.Context]()] = ctx
	args[reflect.TypeFor[[]verbs.WC]()] = make([]verbs.WC, 2)
	m := o.MethodByName(name)
	for _, out := range m.Call(callArgs(m.Type(), args)) {
		switch v := out.Interface().(type) {
		case error:
			err = v
		case *uverbs.Block:
			if v != nil {
				v.Put()
			}
		case closer:
			for _, prefix := range []string{"Alloc", "Create", "Import", "Recycle", "Register"} {
				if strings.HasPrefix(name, prefix) && !out.IsNil() {
					err = errors.Join(err, v.Close())
				}
			}
		case iter.Seq2[uverbs.AsyncEvent, error]:
			for _, err = range v {
			}
		}
	}
	return err
}

// TestSharedParents creates objects with the same parents, in different orders,
// while Close of each parent fails because it is in use; then all are closed at
// the same time.
func TestSharedParents(t *testing.T) {
	labtest.EachClean(t, func(t *testing.T, device string) {
		for range 2 * *times {
			s := newObjectSet(t, device)
			other := labtest.Must(s.ctx.CreateCQ(uverbs.CQOptions{Depth: 64, Channel: s.ch}))(t)
			pd := labtest.Must(s.ctx.AllocPD())(t)
			hold := []closer{
				makeQP(t, s, uverbs.QPOptions{SendCQ: s.cq, RecvCQ: other, SRQ: s.srq}),
				labtest.Must(pd.AllocMR(64, 0, uverbs.MROptions{}))(t),
			}
			parents := []closer{s.ctx, s.pd, pd, s.ch, s.cq, other}
			if s.srq != nil {
				parents = append(parents, s.srq)
			}
			make1 := func(o closer, err error) error {
				if err == nil {
					err = o.Close()
				}
				return err
			}
			makeQP := func(pd *uverbs.PD, opt uverbs.QPOptions) error {
				opt.Cap = verbs.QPCap{MaxSendWR: 1, MaxRecvWR: 1}
				return make1(pd.CreateQP(opt))
			}
			makers := []func() error{
				func() error { return makeQP(s.pd, uverbs.QPOptions{SendCQ: s.cq, RecvCQ: other}) },
				func() error { return makeQP(s.pd, uverbs.QPOptions{SendCQ: other, RecvCQ: s.cq, SRQ: s.srq}) },
				func() error { return makeQP(pd, uverbs.QPOptions{SendCQ: other, RecvCQ: s.cq}) },
				func() error { return makeQP(pd, uverbs.QPOptions{SendCQ: s.cq, RecvCQ: other}) },
				func() error { return make1(s.ctx.CreateCQ(uverbs.CQOptions{Depth: 4, Channel: s.ch})) },
				func() error {
					if s.srq == nil {
						return nil
					}
					return make1(s.pd.CreateSRQ(uverbs.SRQOptions{MaxWR: 1, MaxSGE: 1}))
				},
				func() error {
					err := s.mr.Rereg(uverbs.ReregOptions{PD: pd})
					if err != nil { // not on siw
						return nil
					}
					return s.mr.Rereg(uverbs.ReregOptions{PD: s.pd})
				},
			}
			panicOnHang("making and closing", func() {
				var making, closing sync.WaitGroup
				var done atomic.Bool
				for _, p := range parents {
					closing.Go(func() {
						for !done.Load() {
							if err := p.Close(); !errors.Is(err, verbs.ErrInUse) {
								t.Errorf("closing a parent: %v", err)
								return
							}
							runtime.Gosched()
						}
					})
				}
				for _, m := range makers {
					making.Go(func() {
						for range 100 {
							if err := m(); err != nil {
								t.Error(err)
								return
							}
						}
					})
				}
				making.Wait()
				done.Store(true)
				closing.Wait()
			})
			all := append(append(s.objects(), hold...), other, pd)
			rand.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
			panicOnHang("closing all", func() {
				var wg sync.WaitGroup
				for _, o := range all {
					wg.Go(func() { closeUnused(t, o) })
				}
				wg.Wait()
			})
		}
	})
}

// panicOnHang ends the process, and prints the stacks of all goroutines, if f blocks: nothing
// could be closed then.
func panicOnHang(what string, f func()) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		f()
	}()
	select {
	case <-done:
	case <-time.After(waitTimeout):
		buf := make([]byte, 1<<20)
		panic(fmt.Sprintf("%s hang\n%s", what, buf[:runtime.Stack(buf, true)]))
	}
}
