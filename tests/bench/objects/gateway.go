package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/s3rdma/hipobj"
	"github.com/goverbs/verbs/tests/s3/versitygw/sigv4"
	"github.com/goverbs/verbs/uverbs"
)

// sessions is how many an account of the gateway has at a time. Other clients wait here.
const sessions = 16

const access, secret = "verbs", "secret-of-verbs"

// gateways measures programs by hipobj-rc-v2.
func gateways(ctx *uverbs.Context, addr netip.Addr) error {
	var ways []way
	for _, item := range strings.Split(*others, ",") {
		f := strings.Split(item, "=")
		if len(f) != 3 {
			return fmt.Errorf("option -gateways: %q, want NAME=PROGRAM=HINT", item)
		}
		g, err := startGateway(ctx, addr, f[1], f[2])
		if err != nil {
			return fmt.Errorf("%s: %w", f[1], err)
		}
		defer g.end()
		ways = append(ways, way{f[0], g.move, g.used})
	}
	return table(ctx.Device().Name, ways)
}

// gateway is a vgwrdma that runs, and its client.
type gateway struct {
	cmd    *exec.Cmd
	dir    string
	client *hipobj.Client
	memory map[int]chan *uverbs.MR // by size: clients register once, as programs do
}

func startGateway(ctx *uverbs.Context, addr netip.Addr, program, hint string) (g *gateway, err error) {
	l, err := net.Listen("tcp", netip.AddrPortFrom(addr, 0).String())
	if err != nil {
		return nil, err
	}
	listen := l.Addr().String()
	l.Close()
	g = &gateway{memory: map[int]chan *uverbs.MR{}}
	if g.dir, err = os.MkdirTemp("/dev/shm", "objects"); err != nil {
		return nil, err
	}
	objects, meta := filepath.Join(g.dir, "objects"), filepath.Join(g.dir, "meta")
	if err := errors.Join(os.Mkdir(objects, 0o700), os.Mkdir(meta, 0o700)); err != nil {
		return nil, err
	}
	g.cmd = exec.Command(program, "--access", access, "--secret", secret, "--port", listen, "--quiet", "--rdma-rc-enable", "--rc-gid-hint", hint, "posix", "--sidecar", meta, objects)
	g.cmd.Env = append(os.Environ(), "GODEBUG=cgocheck=0") // it passes C pointers to pointers
	g.cmd.Stderr = os.Stderr
	if err := g.cmd.Start(); err != nil {
		return nil, err
	}
	pd, err := ctx.AllocPD()
	if err != nil {
		return nil, err
	}
	base := &http.Transport{DialContext: (&net.Dialer{LocalAddr: &net.TCPAddr{IP: addr.AsSlice()}}).DialContext, MaxIdleConnsPerHost: sessions}
	g.client = &hipobj.Client{URL: "http://" + listen, HTTP: &http.Client{Transport: base}, Sign: sigv4.Signer(access, secret), PD: pd}
	for deadline := time.Now().Add(time.Minute); ; {
		r, err := http.NewRequest(http.MethodPut, g.client.URL+"/bucket", nil)
		if err != nil {
			return nil, err
		}
		g.client.Sign(r)
		resp, err := g.client.HTTP.Do(r)
		if err == nil {
			resp.Body.Close()
			if resp.StatusCode == http.StatusOK {
				break
			}
			err = errors.New(resp.Status)
		}
		if time.Now().After(deadline) {
			return nil, fmt.Errorf("make the bucket: %w", err)
		}
		time.Sleep(100 * time.Millisecond)
	}
	for _, n := range numbers(*sizes) {
		g.memory[n] = make(chan *uverbs.MR, sessions)
		for range min(sessions, slices.Max(numbers(*clients))) {
			mr, err := pd.AllocMR(n, verbs.AccessLocalWrite|verbs.AccessRemoteWrite, uverbs.MROptions{})
			if err != nil {
				return nil, err
			}
			copy(mr.Bytes(), pattern)
			g.memory[n] <- mr
		}
	}
	return g, nil
}

func (g *gateway) end() {
	g.cmd.Process.Kill()
	g.cmd.Wait()
	os.RemoveAll(g.dir)
}

func (g *gateway) move(op string, size int, _ []byte) (time.Time, error) {
	mr := <-g.memory[size]
	defer func() { g.memory[size] <- mr }()
	target, m := "/bucket/"+strconv.Itoa(size), hipobj.Memory{MR: mr}
	if op == "PUT" {
		_, err := g.client.Put(context.Background(), target, m)
		return time.Now(), err
	}
	clear(mr.Bytes()[:1])
	_, err := g.client.Get(context.Background(), target, 0, m)
	at := time.Now()
	if err == nil && !bytes.Equal(mr.Bytes(), pattern[:size]) {
		err = errors.New("wrong bytes")
	}
	return at, err
}

// used returns the processor time of all threads of the gateway.
func (g *gateway) used() (sum time.Duration, err error) {
	files, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/schedstat", g.cmd.Process.Pid))
	for _, name := range files {
		b, e := os.ReadFile(name)
		if e != nil {
			continue // the thread has ended
		}
		field, _, _ := strings.Cut(string(b), " ")
		n, e := strconv.ParseInt(field, 10, 64)
		sum, err = sum+time.Duration(n), errors.Join(err, e)
	}
	return sum, err
}
