package rsock

import (
	"context"
	"net"
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/goverbs/verbs/internal/labtest"
	"github.com/goverbs/verbs/rsock"
	"github.com/goverbs/verbs/verbstest"
)

// TestGRPCStop stops a server of gRPC at once, whose client lives or has died: gRPC closes
// connections while it holds a lock, so that one that waited would stop the clock of the bubble.
func TestGRPCStop(t *testing.T) {
	for name, dies := range map[string]bool{"client lives": false, "client has died": true} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				network := verbstest.NewNetwork(verbstest.Options{Link: verbstest.Link{Delay: 10 * time.Microsecond}})
				lc := rsock.ListenConfig{Transport: verbstest.NewHost(t, network, "10.0.0.1")}
				l := labtest.Must(lc.Listen(t.Context(), "rdma", "10.0.0.1:80"))(t)
				server := grpc.NewServer()
				server.RegisterService(&echo, nil)
				go server.Serve(l)
				d := rsock.Dialer{Transport: verbstest.NewHost(t, network, "10.0.0.2"), Options: rsock.Options{Linger: -1}}
				client := labtest.Must(grpc.NewClient("passthrough:///"+l.Addr().String(),
					grpc.WithTransportCredentials(insecure.NewCredentials()),
					grpc.WithContextDialer(func(ctx context.Context, addr string) (net.Conn, error) {
						return d.DialContext(ctx, "rdma", addr)
					})))(t)
				var out bytesValue
				labtest.Check(t, client.Invoke(t.Context(), "/Echo/Once", &bytesValue{Value: []byte("x")}, &out))
				if dies {
					network.Remove(netip.MustParseAddr("10.0.0.2"))
				}
				begin := time.Now()
				server.Stop()
				if took := time.Since(begin); took > time.Millisecond {
					t.Errorf("Stop took %v", took)
				}
				client.Close()
			})
		})
	}
}
