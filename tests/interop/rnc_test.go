package interop

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/goverbs/verbs/internal/labtest"
	"github.com/goverbs/verbs/rsock"
)

var buildRnc = compile("rnc", "testdata/rnc.c", "-lrdmacm")

func noise(seed, n int) []byte {
	b := make([]byte, n)
	rand.NewChaCha8([32]byte{byte(seed)}).Read(b)
	return b
}

// rnc runs a netcat in C over rsockets, at the other end of conn.
func rnc(t *testing.T, device string, listen bool, opt rsock.Options, in []byte, size, sleep int) (p *program, conn *rsock.Conn, out string) {
	t.Helper()
	dir := t.TempDir()
	out = filepath.Join(dir, "out")
	labtest.Check(t, os.WriteFile(filepath.Join(dir, "in"), in, 0o644))
	script := fmt.Sprintf("exec %s \"$@\" <%s/in >%s", labtest.Must(buildRnc())(t), dir, out)
	run := func(port string, args ...string) *program {
		args = append(args, labtest.AddrOf(device), port, strconv.Itoa(size), strconv.Itoa(sleep))
		return start(t, "sh", append([]string{"-c", script, "sh"}, args...)...)
	}
	if listen {
		p, conn = rsDial(t, device, opt, func(port string) *program { return run(port, "-l") })
	} else {
		p, conn = rsAccept(t, device, opt, func(port string) *program { return run(port) })
	}
	return p, conn, out
}

// TestBothWays makes both sides write at the same time, end in any order, and compare: in
// large pieces, and in small ones while the other sleeps.
//
// On siw C must not end before Go has read everything: C closes as soon as TCP has its data,
// and if Go then sends something, such as credits for what it has read, TCP resets the
// connection and drops the data in flight.
func TestBothWays(t *testing.T) {
	labtest.RequireLong(t)
	labtest.Each(t, func(t *testing.T, device string) {
		tiny := rsock.Options{SendQueue: 16, RecvQueue: 16, ReadBuffer: 8192, WriteBuffer: 4096}
		for _, r := range labtest.Few(3, []struct {
			name       string
			opt        rsock.Options
			there, way int // bytes that Go writes, and the size of its writes
			back, size int // and those of C
			sleepC     int // seconds before it reads
			sleepGo    time.Duration
			c          map[string]string
		}{
			{"large", rsock.Options{}, 3 << 20, 100000, 3 << 20, 65536, 0, 0, nil},
			{"nothing", rsock.Options{}, 0, 1, 0, 1, 0, 0, nil},
			{"C's buffers", tiny, 300000, 50000, 300000, 50000, 0, 0, map[string]string{"mem_default": "8192", "wmem_default": "4096"}},
			{"there", rsock.Options{}, 1 << 20, 4096, 0, 1, 0, 0, nil},
			{"back", rsock.Options{}, 0, 1, 1 << 20, 4096, 0, 0, nil},
			{"small to a sleeper", rsock.Options{}, 3000, 1, 3000, 1, 1, 0, nil},
			{"small from a sleeper", rsock.Options{}, 3000, 1, 3000, 1, 0, time.Second, nil},
			{"small while both sleep", rsock.Options{Inline: -1}, 3000, 1, 3000, 1, 1, time.Second, nil},
			{"small queues", tiny, 20000, 10, 20000, 10, 1, time.Second, map[string]string{"sqsize_default": "16", "rqsize_default": "16"}},
		}) {
			for _, listen := range []bool{false, true} {
				t.Run(fmt.Sprintf("%s, C listens %v", r.name, listen), func(t *testing.T) {
					rsConfigure(t, r.c)
					there, back := noise(2, r.there), noise(3, r.back)
					c, conn, out := rnc(t, device, listen, r.opt, back, r.size, r.sleepC)
					defer conn.Close()
					conn.SetDeadline(time.Now().Add(50 * time.Second))
					written, all := make(chan error, 1), make(chan struct{})
					go func() {
						var err error
						for b := there; len(b) > 0 && err == nil; b = b[min(r.way, len(b)):] {
							_, err = conn.Write(b[:min(r.way, len(b))])
						}
						if device == labtest.SIW {
							<-all
						}
						written <- errors.Join(err, conn.CloseWrite())
					}()
					time.Sleep(r.sleepGo)
					got := make([]byte, len(back))
					n, err := io.ReadFull(conn, got)
					close(all)
					if err != nil || !bytes.Equal(got, back) {
						t.Errorf("%v, read %d bytes of %d, or others", err, n, len(back))
					}
					if n, err := io.Copy(io.Discard, conn); n != 0 || err != nil {
						t.Errorf("%d bytes more than C wrote, %v", n, err)
					}
					if err := <-written; err != nil {
						t.Error(err)
					}
					if _, err := conn.Write([]byte("x")); !errors.Is(err, syscall.EPIPE) {
						t.Errorf("write after CloseWrite: %v", err)
					}
					c.Wait()
					if err := conn.Close(); err != nil {
						t.Error(err)
					}
					if got, err := os.ReadFile(out); err != nil || !bytes.Equal(got, there) {
						t.Errorf("C: %v, read %d bytes of %d, or others", err, len(got), len(there))
					}
				})
			}
		}
	})
}

// TestCloseDelivers checks that all data written before Close arrives at a C peer that reads
// it later.
func TestCloseDelivers(t *testing.T) {
	labtest.RequireLong(t)
	labtest.Each(t, func(t *testing.T, device string) {
		for _, size := range labtest.Few(2, []int{1000, 100000, 1}) {
			there := noise(4, size)
			c, conn, out := rnc(t, device, size == 1000, rsock.Options{}, nil, 1, 1)
			if _, err := conn.Write(there); err != nil {
				t.Error(err)
			}
			if err := conn.Close(); err != nil {
				t.Error(err)
			}
			<-c.Done // it may fail to send its own end
			if got, err := os.ReadFile(out); err != nil || !bytes.Equal(got, there) {
				t.Errorf("C: %v, read %d bytes of %d, or others", err, len(got), len(there))
			}
		}
	})
}
