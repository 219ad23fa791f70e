package s3

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/internal/labtest"
	"github.com/goverbs/verbs/uverbs"
)

// dcKey is the one that cuObject's clients have by default.
const dcKey = 0xffeeddcc

// objects is a server of as much of S3 and cuObject's protocol as cuobjtest needs, without a check
// of signatures.
type objects struct {
	pd  *uverbs.PD
	cq  *uverbs.CQ
	dci *uverbs.QP

	mu    sync.Mutex
	all   map[string]*uverbs.MR
	moved map[string]int // requests of each method
}

// ServeHTTP takes cuobjtest's names of headers: its release 1.8.0 sends the token in one of its
// own.
func (o *objects) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	token := r.Header.Get("X-CuObj-RDMA-Descr")
	if token == "" { // HeadBucket
		return
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	n, err := o.move(r.Context(), r.Method, r.URL.Path, token)
	if err != nil {
		http.Error(w, err.Error(), http.StatusForbidden) // a status that the SDK does not try again
		return
	}
	w.Header().Set("ETag", `"1"`)
	w.Header().Set("X-Amz-Rdma-Reply", "200")
	w.Header().Set("X-Amz-Rdma-Bytes-Transferred", strconv.Itoa(n))
}

// move reads the object from the client's memory, or writes it there.
func (o *objects) move(ctx context.Context, method, path, token string) (n int, err error) {
	var addr uint64
	var size, key, lid, target, global uint32
	var raw []byte
	if _, err := fmt.Sscanf(token, "%016x:%08x:%08x:%04x:%06x:%1x:%32x", &addr, &size, &key, &lid, &target, &global, &raw); err != nil || len(token) != 81 {
		return 0, fmt.Errorf("token %q: %v", token, err)
	}
	gid := verbs.GID(raw)
	local, err := o.pd.Context().FindGID(1, netip.AddrFrom16(gid).Unmap())
	if err != nil {
		return 0, err
	}
	ah, err := o.pd.CreateAH(verbs.AddressVector{Global: true, DGID: gid, SGIDIndex: uint8(local.Index), HopLimit: 4, Port: 1})
	if err != nil {
		return 0, err
	}
	defer ah.Close()
	mr, op := o.all[path], verbs.OpRDMAWrite
	if method == http.MethodPut {
		op = verbs.OpRDMARead
		if mr, err = o.pd.AllocMR(int(size), verbs.AccessLocalWrite, uverbs.MROptions{}); err != nil {
			return 0, err
		}
		o.all[path].Close()
		o.all[path] = mr
	} else if mr == nil {
		return 0, fmt.Errorf("no object %s", path)
	}
	_, err = o.dci.PostSend(verbs.SendWR{Opcode: op, Flags: verbs.SendSignaled, SGL: []verbs.SGE{mr.SGE(0, mr.Len())}, To: ah.To(target, 0), RemoteAddr: addr, RKey: key})
	if err != nil {
		return 0, err
	}
	_, err = o.cq.Next(ctx)
	o.moved[method]++
	return mr.Len(), err
}

// TestCuObjTest lets cuobjtest put and get objects. It compares them.
func TestCuObjTest(t *testing.T) {
	labtest.RequireAdapter(t)
	ctx := labtest.OpenDevice(t, labtest.MLX5)
	gid := labtest.Must(ctx.FindGID(1, netip.Addr{}))(t)
	pd := labtest.Made(ctx.AllocPD())(t)
	ch := labtest.Made(ctx.CreateCompChannel())(t)
	cq := labtest.Made(ctx.CreateCQ(uverbs.CQOptions{Depth: 1, Channel: ch}))(t)
	dci := labtest.Made(pd.CreateQP(uverbs.QPOptions{Type: verbs.DCI, SendCQ: cq, DCKey: dcKey, Cap: verbs.QPCap{MaxSendWR: 1, MaxSendSGE: 1}}))(t)
	labtest.Check(t, dci.StartDC(gid, uverbs.ConnectOptions{}))
	for _, n := range []int{1, 4097, 3<<20 + 1} {
		t.Run(strconv.Itoa(n), func(t *testing.T) {
			o := &objects{pd: pd, cq: cq, dci: dci, all: map[string]*uverbs.MR{}, moved: map[string]int{}}
			s := httptest.NewServer(o)
			t.Cleanup(func() {
				s.Close()
				for _, mr := range o.all {
					labtest.Close(t, mr)
				}
			})
			const rounds = 3
			labtest.Start(t, 3*time.Minute, "env", "VGWRDMA_RDMA_DEV="+labtest.MLX5, "AWS_SECRET_ACCESS_KEY="+secret,
				labtest.Built(t, "s3/cuobjtest"), "-endpoint", s.URL, "-access", access, "-size", strconv.Itoa(n), "-n", strconv.Itoa(rounds)).Wait()
			if o.moved[http.MethodPut] != rounds || o.moved[http.MethodGet] != rounds {
				t.Errorf("%v objects have been moved, want %d of each", o.moved, rounds)
			}
		})
	}
}
