package s3

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/internal/labtest"
	"github.com/goverbs/verbs/uverbs"
)

const gatewayPort = 17171

// gateway is vgwrdma on rxe0. Its objects are files.
type gateway struct{ url, bucket string }

// startGateway starts vgwrdma with a bucket. The hint is the start of the GID of an IPv4 address, so
// it takes rxe0. It stores metadata in files: not all file systems of the lab have extended
// attributes.
func startGateway(t *testing.T) gateway {
	t.Helper()
	dir, meta := t.TempDir(), t.TempDir()
	// The gateway passes C a pointer to memory with pointers of Go, which the runtime refuses.
	p := labtest.Start(t, 5*time.Minute, "env", "GODEBUG=cgocheck=0",
		labtest.Built(t, "s3/vgwrdma"), "--access", access, "--secret", secret, "--port", fmt.Sprintf("127.0.0.1:%d", gatewayPort),
		"--quiet", "--rdma-rc-enable", "--rc-gid-hint", "0:0:0:0", "posix", "--sidecar", meta, dir)
	p.ListensTCP(gatewayPort)
	g := gateway{fmt.Sprintf("http://127.0.0.1:%d", gatewayPort), filepath.Join(dir, "bucket")}
	g.do(t, http.MethodPut, "/bucket", nil)
	return g
}

// do sends a signed request, and returns the header of its success.
func (g gateway) do(t *testing.T, method, path string, header map[string]string) http.Header {
	t.Helper()
	r := labtest.Must(http.NewRequestWithContext(t.Context(), method, g.url+path, nil))(t)
	for name, value := range header {
		r.Header.Set("X-Amz-Rdma-"+name, value)
	}
	sign(r)
	resp := labtest.Must(http.DefaultClient.Do(r))(t)
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		var body bytes.Buffer
		body.ReadFrom(resp.Body)
		t.Fatalf("%s %s: %s: %s", method, path, resp.Status, &body)
	}
	return resp.Header
}

// TestGateway puts and gets objects of vgwrdma by hipobj-rc-v2, and compares them with its files.
func TestGateway(t *testing.T) {
	labtest.RequireKernel(t)
	g := startGateway(t)
	ctx := labtest.OpenDevice(t, labtest.RXE)
	pd := labtest.Made(ctx.AllocPD())(t)
	for _, n := range []int{1, 1023, 1025, 1 << 20} {
		t.Run(strconv.Itoa(n), func(t *testing.T) {
			src := labtest.Made(pd.AllocMR(n, 0, uverbs.MROptions{}))(t)
			copy(src.Bytes(), labtest.RandomBytes(n, n))
			name := fmt.Sprintf("of %d bytes", n)
			g.move(t, pd, "PUT", "/bucket/of%20"+strconv.Itoa(n)+"%20bytes", src)
			if got := labtest.Must(os.ReadFile(filepath.Join(g.bucket, name)))(t); !bytes.Equal(got, src.Bytes()) {
				t.Errorf("the gateway's file has %d bytes that differ from the %d put", len(got), n)
			}
			dst := labtest.Made(pd.AllocMR(n, verbs.AccessLocalWrite|verbs.AccessRemoteWrite, uverbs.MROptions{}))(t)
			g.move(t, pd, "GET", "/bucket/of%20"+strconv.Itoa(n)+"%20bytes", dst)
			if !bytes.Equal(dst.Bytes(), src.Bytes()) {
				t.Error("what GET has written differs from what was put")
			}
		})
	}
}

// move puts or gets an object that is as long as mr.
func (g gateway) move(t *testing.T, pd *uverbs.PD, op, target string, mr *uverbs.MR) {
	t.Helper()
	cq := labtest.Made(pd.Context().CreateCQ(uverbs.CQOptions{Depth: 2}))(t)
	qp := labtest.Made(pd.CreateQP(uverbs.QPOptions{SendCQ: cq, RecvCQ: cq, Cap: verbs.QPCap{MaxSendWR: 1, MaxRecvWR: 1, MaxSendSGE: 1, MaxRecvSGE: 1}}))(t)
	local := labtest.Must(qp.AddrOn(labtest.Must(pd.Context().FindGID(1, netip.MustParseAddr(labtest.AddrOf(labtest.RXE))))(t)))(t)
	cookie := rand.Uint32() | 1
	prepared := g.do(t, "POST", "/.hipobj-rc/prepare", map[string]string{
		"Protocol": "hipobj-rc-v2", "Op": op, "Target": target, "Size": strconv.Itoa(mr.Len()), "Offset": "0",
		"Psn": fmt.Sprintf("%06x", local.PSN), "Cookie": fmt.Sprintf("%08x", cookie), "Token": token(local),
	})
	number := func(h http.Header, name string, base int) uint64 {
		t.Helper()
		return labtest.Must(strconv.ParseUint(h.Get("X-Amz-Rdma-"+name), base, 64))(t)
	}
	reply, ok := strings.CutPrefix(prepared.Get("X-Amz-Rdma-Reply"), "200:")
	raw, err := hex.DecodeString(reply)
	if !ok || err != nil || len(raw) != 44 {
		t.Fatalf("the reply to PREPARE is %q", prepared.Get("X-Amz-Rdma-Reply"))
	}
	remote := verbs.QPAddr{QPNum: binary.LittleEndian.Uint32(raw[1:]), PSN: uint32(number(prepared, "Psn", 16)), GID: verbs.GID(raw[5:21])}
	// The gateway takes the bytes of a PUT only when it has connected, at READY: until then they
	// are repeated.
	labtest.Check(t, qp.Connect(local, remote, uverbs.ConnectOptions{Access: verbs.AccessRemoteWrite, Timeout: 16, RetryCount: 7}))
	if op == "GET" {
		labtest.Must(qp.PostRecv(verbs.RecvWR{}))(t)
	} else {
		labtest.Must(qp.PostSend(verbs.SendWR{
			Opcode: verbs.OpRDMAWriteImm, Flags: verbs.SendSignaled, Imm: cookie, SGL: []verbs.SGE{mr.SGE(0, mr.Len())},
			RemoteAddr: number(prepared, "Mr-Addr", 16), RKey: uint32(number(prepared, "Mr-Rkey", 16)),
		}))(t)
	}
	final := g.do(t, "POST", "/.hipobj-rc/ready", map[string]string{
		"Protocol": "hipobj-rc-v2", "Session": prepared.Get("X-Amz-Rdma-Session"), "Cookie": fmt.Sprintf("%08x", cookie),
		"Qpn": fmt.Sprintf("%x", qp.Num()), "Mr-Addr": fmt.Sprintf("%x", mr.Addr()), "Mr-Rkey": fmt.Sprintf("%x", mr.RKey()),
	})
	if got := number(final, "Bytes-Transferred", 10); got != uint64(mr.Len()) {
		t.Errorf("%s of %d bytes: the gateway has moved %d", op, mr.Len(), got)
	}
	wc := labtest.Must(cq.Next(labtest.Within(t, time.Minute)))(t)
	if op == "GET" && (wc.Opcode != verbs.WCRecvRDMAImm || wc.Imm() != cookie) {
		t.Errorf("GET ends with %v and immediate %08x, want %08x", wc.Opcode, wc.Imm(), cookie)
	}
}

// token returns the token of a QP without memory: 44 bytes, little-endian.
func token(a verbs.QPAddr) string {
	const rc = 1
	b := binary.LittleEndian.AppendUint32([]byte{rc}, a.QPNum)
	b = append(append(b, a.GID[:]...), make([]byte, 4+8+8)...) // key, address and length
	b = binary.LittleEndian.AppendUint16(append(b, byte(a.Port)), a.LID)
	return hex.EncodeToString(b)
}
