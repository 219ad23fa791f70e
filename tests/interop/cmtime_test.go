package interop

import (
	"context"
	"errors"
	"net/netip"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/cm"
	"github.com/goverbs/verbs/internal/labtest"
)

func cmtimeConnections() int { return labtest.Rounds(50, 10) }

// TestCmtime makes and ends many connections at a time with rdma-core's cmtime, which
// transfers no data.
func TestCmtime(t *testing.T) {
	labtest.RequireKernel(t)
	labtest.Each(t, func(t *testing.T, device string) {
		if labtest.RDMACore(t) > 44 {
			testCmtimeSync(t, device)
			return
		}
		local := labtest.AddrOf(device)
		t.Run("Go server", func(t *testing.T) {
			ctx := timeLimit(t)
			l := labtest.Made(cm.Listen(ctx, local+":7471"))(t)
		again:
			client := start(t, "cmtime", "-b", local, "-s", local, "-c", strconv.Itoa(cmtimeConnections()))
			running, end := context.WithCancel(ctx)
			go func() {
				<-client.Done
				end()
			}()
			serve := func(int, struct{}) error {
				r, err := l.Accept(running)
				if err != nil {
					return err
				}
				e, err := r.Accept(ctx, cmtimeOptions)
				if err != nil {
					return err
				}
				return errors.Join((&ucmatoseConn{Endpoint: e}).waitDisconnect(ctx), e.Close())
			}
			err := forEachConn(make([]struct{}, cmtimeConnections()), serve)
			out := client.Wait()
			if err != nil && strings.Contains(out, "Address already in use") && ctx.Err() == nil {
				// The connection manager gave the client a port that TCP still uses, as it may on siw.
				// cm.Dial takes another one.
				t.Log("a port of the client was in use")
				goto again
			}
			if err != nil {
				t.Error(err)
			}
			for _, step := range []string{"bind addr", "resolve addr", "resolve route", "create qp", "connect", "disconnect"} {
				if !regexp.MustCompile(`(?m)^` + step + ` *: +\d`).MatchString(out) {
					t.Errorf("C does not say how long it took to %s:\n%s", step, out)
				}
			}
		})
		t.Run("Go client", func(t *testing.T) {
			// C's server works for one round only: all its QPs use the CQs of the first
			// connection, and it destroys them with that one if it ends last.
			server := start(t, "cmtime", "-b", local)
			labtest.WaitListening(t, "7471")
			before := labtest.Must(labtest.Resources())(t)[device]
			begin := time.Now()
			if err := cmtimeConnect(timeLimit(t), local); err != nil {
				t.Error(err)
			}
			t.Logf("%d connections, up and down, in %v", cmtimeConnections(), time.Since(begin))
			// C's server releases each connection and continues to run.
			for tries := 0; ; tries++ {
				select {
				case <-server.Done:
					t.Fatalf("C's server has ended: %v", server.Err)
				case <-time.After(25 * time.Millisecond):
				}
				now := labtest.Must(labtest.Resources())(t)[device]
				if now["cm_id"] == before["cm_id"] && now["qp"] == before["qp"] {
					break
				}
				if tries == 400 {
					t.Fatalf("C's server keeps connections: of %v there are %v", before, now)
				}
			}
		})
	})
}

// cmtimeOptions are the options for a QP like that of cmtime.
var cmtimeOptions = cm.Options{
	Cap:                verbs.QPCap{MaxSendWR: 1, MaxRecvWR: 1, MaxSendSGE: 1, MaxRecvSGE: 1},
	ResponderResources: 1,
	InitiatorDepth:     1,
}

// cmtimeConnect makes all connections, and closes them when all are established.
func cmtimeConnect(ctx context.Context, addr string) error {
	d := cm.Dialer{Options: cmtimeOptions, LocalAddr: netip.AddrPortFrom(netip.MustParseAddr(addr), 0)}
	up := make([]*cm.Endpoint, cmtimeConnections())
	err := forEachConn(up, func(i int, _ *cm.Endpoint) (err error) {
		up[i], err = d.Dial(ctx, addr+":7471")
		return err
	})
	return errors.Join(err, forEachConn(up, func(_ int, e *cm.Endpoint) error {
		if e == nil {
			return nil
		}
		if err := e.Err(); err != nil {
			return err
		}
		return e.Close()
	}))
}
