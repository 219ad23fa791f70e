//go:build linux

package s3rdma

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/internal/labtest"
	"github.com/goverbs/verbs/uverbs"
)

// remote returns a client's memory as a program without net/http does.
func (r *rig) remote(token string) (*Remote, error) {
	return r.srv.Remote(Peer{"127.0.0.1", func(verbs.GID) error { return nil }}, token)
}

// TestStates makes all sequences of up to four calls, and compares each result with a rule.
func TestStates(t *testing.T) {
	eachRig(t, ServerOptions{}, http.NotFoundHandler(), func(t *testing.T, r *rig) {
		c := r.client(100)
		block := labtest.Must(r.srv.Block(r.within(), 100))(t)
		defer block.Put()
		calls := []string{"move", "bad", "commit", "close"}
		var walk func(sequence []string)
		walk = func(sequence []string) {
			rem := labtest.Must(r.remote(c.token(100)))(t)
			right := rem.rkey
			is := func(err, want error) bool { return errors.Is(err, want) && (err == nil) == (want == nil) }
			var want error // of a move
			closed := false
			for i, call := range sequence {
				var err, expect error
				switch call {
				case "move", "bad":
					if rem.rkey = right; call == "bad" {
						rem.rkey++
					}
					if expect = want; want == nil && call == "bad" {
						expect, want = verbs.WCRemAccessErr, verbs.WCRemAccessErr
					}
					err = rem.Move(r.within(), verbs.OpRDMAWrite, whole(r, block), 0)
				case "commit":
					if expect = want; errors.Is(want, errCommitted) {
						expect = nil
					} else if want == nil {
						want = errCommitted
					}
					err = rem.Commit(r.within())
				case "close":
					if closed {
						expect = verbs.ErrClosed
					}
					closed, want = true, verbs.ErrClosed
					err = rem.Close()
				}
				if !is(err, expect) {
					t.Errorf("%v: call %d: %v, want %v", sequence, i, err, expect)
				}
			}
			rem.Close()
			if st := r.srv.Stats(); st.Transfers != 0 || st.DCIsInUse != 0 {
				t.Errorf("%v: %+v", sequence, st)
			}
			if !r.dc && slices.Contains(sequence, "bad") && r.srv.rc.find("127.0.0.1", c.id) == nil {
				c = r.client(100)
			}
			if len(sequence) < 4 {
				for _, call := range calls {
					walk(append(slices.Clone(sequence), call))
				}
			}
		}
		walk(nil)
	})
}

// TestTransitions checks that the table has no way back, and that all that ends a transfer is final.
func TestTransitions(t *testing.T) {
	for from, row := range transitions {
		for e, to := range row {
			if to < state(from) {
				t.Errorf("state %d becomes %d by event %d", from, to, e)
			}
		}
	}
}

// TestRemoteErrors has calls that a program must not make.
func TestRemoteErrors(t *testing.T) {
	r := newRig(t, ServerOptions{}, http.NotFoundHandler())
	c := r.client(100)
	block := labtest.Must(r.srv.Block(r.within(), 101))(t)
	defer block.Put()
	rem := labtest.Must(r.remote(c.token(100)))(t)
	defer rem.Close()
	for name, test := range map[string]struct {
		err  error
		want error
	}{
		"SEND":          {rem.Move(r.within(), verbs.OpSend, whole(r, block), 0), errors.ErrUnsupported},
		"too long":      {rem.Move(r.within(), verbs.OpRDMARead, whole(r, block), 0), verbs.ErrRange},
		"too far":       {rem.Move(r.within(), verbs.OpRDMARead, whole(r, block), 1<<63-1), verbs.ErrRange},
		"before":        {rem.Move(r.within(), verbs.OpRDMARead, whole(r, block), -1), verbs.ErrRange},
		"other way":     {rem.Move(r.within(), verbs.OpRDMAWrite, whole(r, block), 0), verbs.ErrInUse},
		"nil is closed": {(*Remote)(nil).Close(), verbs.ErrClosed},
		"no reader":     {(*Reader)(nil).Close(), verbs.ErrClosed},
		"no server":     {(*Server)(nil).Close(), verbs.ErrClosed},
	} {
		if !errors.Is(test.err, test.want) {
			t.Errorf("%s: %v", name, test.err)
		}
	}
	_, err := rem.Writer(r.within(), 5)
	if !errors.Is(err, verbs.ErrInUse) {
		t.Errorf("Writer of a transfer that READs: %v", err)
	}
	for _, opt := range []ServerOptions{
		{Part: 100}, {Part: -pageSize}, {Parts: 1}, {Parts: laneDepth + 1}, {Memory: 3*pageSize - 1, Part: pageSize, Parts: 3}, {Fabric: Fabric{Timeout: 32}}, {Fabric: Fabric{RetryCount: 8}}, {Fabric: Fabric{TrafficClass: 256}},
	} {
		opt.Device = r.devices[0]
		if s, err := NewServer(opt); !errors.Is(err, verbs.ErrRange) || s != nil {
			t.Errorf("%+v: %v", opt, err)
		}
	}
	most := labtest.Must(NewServer(ServerOptions{Device: r.devices[0], Part: pageSize, Parts: laneDepth, Memory: laneDepth * pageSize}))(t)
	labtest.Check(t, most.Close())
}

// TestFabricLimits sets each option of Fabric to its most, and to more.
func TestFabricLimits(t *testing.T) {
	most := Fabric{DCIs: 1 << 16, Reads: 255, Timeout: 31, RetryCount: 7, TrafficClass: 255, SL: 15, HopLimit: 255, PKeyIndex: 1<<16 - 1}
	labtest.Check(t, most.check())
	for _, field := range []func(*Fabric) *int{
		func(f *Fabric) *int { return &f.DCIs }, func(f *Fabric) *int { return &f.Reads }, func(f *Fabric) *int { return &f.Timeout },
		func(f *Fabric) *int { return &f.RetryCount }, func(f *Fabric) *int { return &f.TrafficClass }, func(f *Fabric) *int { return &f.SL },
		func(f *Fabric) *int { return &f.HopLimit }, func(f *Fabric) *int { return &f.PKeyIndex },
	} {
		more := most
		*field(&more)++
		if err := more.check(); !errors.Is(err, verbs.ErrRange) {
			t.Errorf("%+v: %v", more, err)
		}
	}
}

// TestMemoryLost has a queue pair that cannot be ended: whoever has given memory learns it.
func TestMemoryLost(t *testing.T) {
	eachRig(t, ServerOptions{}, http.NotFoundHandler(), func(t *testing.T, r *rig) {
		block := labtest.Must(r.srv.Block(r.within(), 100))(t)
		defer block.Put()
		rem := labtest.Must(r.remote(r.client(100).token(100)))(t)
		labtest.Check(t, rem.Move(r.within(), verbs.OpRDMARead, whole(r, block), 0))
		put, no := rem.lane.put, errors.New("no")
		rem.lane.put = func(broken bool, n int) error {
			labtest.Check(t, put(broken, n))
			return no
		}
		rem.rkey++ // which the client does not have
		err := rem.Move(r.within(), verbs.OpRDMARead, whole(r, block), 0)
		if !errors.Is(err, ErrMemoryLost) || !errors.Is(err, no) || !errors.Is(err, verbs.WCRemAccessErr) {
			t.Errorf("Move: %v", err)
		}
		if err := rem.Close(); !errors.Is(err, ErrMemoryLost) {
			t.Errorf("Close: %v", err)
		}
	})
}

// TestServerReleases opens the device in NewServer: it is closed, with all objects, if there is no memory, and by Close.
func TestServerReleases(t *testing.T) {
	labtest.Require(t)
	before := labtest.Must(labtest.Resources())(t)
	if s, err := NewServer(ServerOptions{Memory: math.MaxInt &^ (1<<20 - 1)}); strconv.IntSize == 64 && (err == nil || s != nil) {
		t.Fatalf("a server of all memory: %v", err)
	} else if err == nil { // half of what 32 bits address may be there
		labtest.Check(t, s.Close())
	}
	labtest.Check(t, labtest.Must(NewServer(ServerOptions{}))(t).Close())
	if after := labtest.Must(labtest.Resources())(t); !maps.EqualFunc(before, after, maps.Equal) {
		t.Errorf("%v, before %v", after, before)
	}
}

// TestServerClose ends a server while a transfer waits, and one whose program does nothing.
func TestServerClose(t *testing.T) {
	read := make(chan error)
	goOn := make(chan struct{})
	r := newRig(t, ServerOptions{}, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, err := io.ReadFull(r.Body, make([]byte, 100))
		read <- err
		<-goOn
		_, err = io.Copy(io.Discard, r.Body)
		read <- err
	}))
	c := r.client(len(object))
	answer := make(chan result, 1)
	go func() { answer <- r.do("PUT", "/o", c.token(len(object))) }()
	labtest.Check(t, <-read)
	closed := make(chan error, 1)
	go func() { closed <- r.srv.Close() }()
	labtest.Until(t, "the connection is killed", func() bool { return r.srv.rc.find("127.0.0.1", c.id) == nil })
	goOn <- struct{}{}
	if err := <-read; err == nil {
		t.Error("the body was read after Close")
	}
	if got := <-answer; got.StatusCode != 500 {
		t.Errorf("answer %d %s", got.StatusCode, got.body)
	}
	labtest.Check(t, <-closed)
	if got := r.do("PUT", "/o", c.token(100)); got.StatusCode != 200 || got.reply != "501" {
		t.Errorf("after Close: %d, reply %q", got.StatusCode, got.reply)
	}
	if err := r.srv.Close(); !errors.Is(err, verbs.ErrClosed) {
		t.Errorf("Close again: %v", err)
	}
}

// TestServerCloseWaits closes a server while a client disconnects: Close waits until that connection has ended.
func TestServerCloseWaits(t *testing.T) {
	r := newRig(t, ServerOptions{}, http.NotFoundHandler())
	x := r.srv.rc.find("127.0.0.1", r.client(1).id)
	ending, goOn, release := make(chan bool), make(chan bool), x.release
	x.release = func() {
		close(ending)
		<-goOn
		release()
	}
	req := httptest.NewRequest("POST", PathDisconnect, nil)
	req.RemoteAddr = "127.0.0.1:1"
	req.Header.Set(HeaderSession, x.id)
	go r.srv.ServeHTTP(httptest.NewRecorder(), req)
	<-ending
	closed := make(chan error, 1)
	go func() { closed <- r.srv.Close() }()
	select {
	case err := <-closed:
		t.Errorf("Close has not waited: %v", err)
		closed <- nil
	case <-time.After(50 * time.Millisecond):
	}
	close(goOn)
	labtest.Check(t, <-closed)
}

// TestServerCloseAgain closes a server while the program uses its protection domain, and again when it does not.
func TestServerCloseAgain(t *testing.T) {
	r := newRig(t, ServerOptions{}, http.NotFoundHandler())
	mr := labtest.Must(r.srv.PD().AllocMR(4096, verbs.AccessLocalWrite, uverbs.MROptions{}))(t)
	for range 2 {
		if err := r.srv.Close(); !errors.Is(err, verbs.ErrInUse) {
			t.Errorf("Close while a region is open: %v", err)
		}
	}
	labtest.Check(t, mr.Close(), r.srv.Close())
	if err := r.srv.Close(); !errors.Is(err, verbs.ErrClosed) {
		t.Errorf("Close again: %v", err)
	}
}

// TestReaderAhead checks that a body is read in order with any size of reads.
func TestReaderAhead(t *testing.T) {
	eachRig(t, ServerOptions{Part: 4096, Parts: 3}, http.NotFoundHandler(), func(t *testing.T, r *rig) {
		c := r.client(len(object))
		c.fill(object)
		for _, size := range []int{1, 4095, 4096, 4097, 3 * 4096, 3*4096 + 1, 100_000} {
			for _, step := range []int{4000, 4096, 9000} {
				rem := labtest.Must(r.remote(c.token(size)))(t)
				body := labtest.Must(rem.Reader(r.within()))(t)
				got := make([]byte, 0, size)
				buf := make([]byte, step)
				for {
					n, err := body.Read(buf)
					got = append(got, buf[:n]...)
					if err == io.EOF {
						break
					}
					if err != nil {
						t.Fatal(err)
					}
				}
				if string(got) != string(object[:size]) {
					t.Errorf("%d bytes in steps of %d: others", size, step)
				}
				r.idle() // at the last byte
				labtest.Check(t, rem.Close())
			}
		}
	})
}

// TestBehindEnd reads from a transfer that the program has ended, and which had bytes left, and commits what it has
// written to another.
func TestBehindEnd(t *testing.T) {
	eachRig(t, ServerOptions{Part: 4096}, http.NotFoundHandler(), func(t *testing.T, r *rig) {
		for want, end := range map[error]func(*Remote) error{
			errCommitted:    func(rem *Remote) error { return rem.Commit(r.within()) },
			verbs.ErrClosed: (*Remote).Close,
		} {
			c := r.client(len(object)) // READs in flight end its connection
			rem := labtest.Must(r.remote(c.token(len(object))))(t)
			body := labtest.Must(rem.Reader(r.within()))(t)
			labtest.Must(io.ReadFull(body, make([]byte, 1)))(t)
			labtest.Check(t, end(rem))
			if n, err := body.Read(make([]byte, 10)); n != 0 || !errors.Is(err, want) {
				t.Errorf("Read: %d, %v, want %v", n, err, want)
			}
			if n, err := body.WriteTo(io.Discard); n != 0 || !errors.Is(err, want) {
				t.Errorf("WriteTo: %d, %v, want %v", n, err, want)
			}
			rem.Close()

			rem = labtest.Must(r.remote(r.client(50).token(50)))(t)
			w := labtest.Must(rem.Writer(r.within(), 50))(t)
			labtest.Must(w.Write(make([]byte, 50)))(t)
			labtest.Check(t, end(rem))
			if err := w.Commit(); !errors.Is(err, want) {
				t.Errorf("Commit: %v, want %v", err, want)
			}
			rem.Close()
		}
	})
}

func TestReasons(t *testing.T) {
	seen := map[string]bool{}
	for r := range reasons {
		if name := r.String(); name == "" || seen[name] {
			t.Errorf("reason %d is %q", r, name)
		} else {
			seen[name] = true
		}
	}
	if got := fmt.Sprint(reasons); got != "Reason(7)" {
		t.Error(got)
	}
}

func whole(r *rig, b *uverbs.Block) verbs.SGE { return b.SGE(r.srv.PD(), 0, len(b.Bytes())) }

// TestOwnMemory moves a part of a buffer that the program has registered.
func TestOwnMemory(t *testing.T) {
	eachRig(t, ServerOptions{}, http.NotFoundHandler(), func(t *testing.T, r *rig) {
		c := r.client(200)
		c.fill(object[:200])
		mr := labtest.Must(r.srv.PD().AllocMR(100, verbs.AccessLocalWrite, uverbs.MROptions{}))(t)
		defer mr.Close()
		rem := labtest.Must(r.remote(c.token(200)))(t)
		labtest.Check(t, rem.Move(r.within(), verbs.OpRDMARead, mr.SGE(40, 50), 150), rem.Commit(r.within()), rem.Close())
		if want := append(append(make([]byte, 40), object[150:200]...), make([]byte, 10)...); !bytes.Equal(mr.Bytes(), want) {
			t.Errorf("%x, want %x", mr.Bytes(), want)
		}
	})
}

// TestCleared has a READ fail that would have filled memory with another client's bytes in it: a client of
// rxe can make such a one succeed.
func TestCleared(t *testing.T) {
	eachRig(t, ServerOptions{}, http.NotFoundHandler(), func(t *testing.T, r *rig) {
		if r.dc || !labtest.Lab {
			r.srv.rxe = true
		}
		const size = 100_000 // several parts
		rem := labtest.Must(r.remote(r.client(size).token(size)))(t)
		w := labtest.Must(rem.Writer(r.within(), size))(t)
		for i := range w.mem {
			w.mem[i] = 'x'
		}
		labtest.Check(t, rem.Close())

		rem = labtest.Must(r.remote(r.client(size).token(size)))(t)
		defer rem.Close()
		rem.rkey++ // which the client does not have
		reader := labtest.Must(rem.Reader(r.within()))(t)
		if n, err := reader.Read(make([]byte, size)); !errors.Is(err, verbs.WCRemAccessErr) {
			t.Errorf("read %d bytes: %v", n, err)
		}
		if n := bytes.Count(reader.mem, []byte("x")); n > 0 || len(reader.mem) != len(w.mem) || &reader.mem[0] != &w.mem[0] {
			t.Errorf("%d bytes of another's in memory of %d", n, len(reader.mem))
		}
	})
}

// TestMoveBesideReader moves bytes in the direction of a Reader or a Writer, which has its own requests to wait for.
func TestMoveBesideReader(t *testing.T) {
	eachRig(t, ServerOptions{}, http.NotFoundHandler(), func(t *testing.T, r *rig) {
		const size = 100_000
		c := r.client(size)
		want := labtest.RandomBytes(1, size)
		copy(c.mr.Bytes(), want)
		block := labtest.Must(r.srv.Block(r.within(), 100))(t)
		defer block.Put()
		rem := labtest.Must(r.remote(c.token(size)))(t)
		defer rem.Close()
		reader := labtest.Must(rem.Reader(r.within()))(t)
		got := make([]byte, size)
		labtest.Must(io.ReadFull(reader, got[:10]))(t)
		if err := rem.Move(r.within(), verbs.OpRDMARead, whole(r, block), 0); !errors.Is(err, verbs.ErrInUse) {
			t.Errorf("Move beside a Reader: %v", err)
		}
		labtest.Must(io.ReadFull(reader, got[10:]))(t)
		if !bytes.Equal(got, want) {
			t.Error("the Reader's bytes are wrong")
		}

		other := labtest.Must(r.remote(c.token(size)))(t)
		defer other.Close()
		labtest.Must(other.Writer(r.within(), size))(t)
		if err := other.Move(r.within(), verbs.OpRDMAWrite, whole(r, block), 0); !errors.Is(err, verbs.ErrInUse) {
			t.Errorf("Move beside a Writer: %v", err)
		}
	})
}
