package rsock

import (
	"context"
	"fmt"
	"io"
	"net"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/goverbs/verbs/internal/labtest"
	"github.com/goverbs/verbs/rsock"
)

type bytesValue = wrapperspb.BytesValue

// echo is a service without generated code: a unary method that returns its argument, and
// a stream that does the same until its end.
var echo = grpc.ServiceDesc{
	ServiceName: "Echo",
	HandlerType: (*any)(nil),
	Methods: []grpc.MethodDesc{{
		MethodName: "Once",
		Handler: func(_ any, _ context.Context, dec func(any) error, _ grpc.UnaryServerInterceptor) (any, error) {
			in := new(bytesValue)
			return in, dec(in)
		},
	}},
	Streams: []grpc.StreamDesc{{
		StreamName: "Many", ServerStreams: true, ClientStreams: true,
		Handler: func(_ any, s grpc.ServerStream) error {
			for {
				in := new(bytesValue)
				if err := s.RecvMsg(in); err != nil {
					if err == io.EOF {
						return nil
					}
					return err
				}
				if err := s.SendMsg(in); err != nil {
					return err
				}
			}
		},
	}},
}

func TestGRPC(t *testing.T) {
	labtest.Each(t, func(t *testing.T, device string) {
		l := labtest.Must(rsock.Listen("rdma", labtest.AddrOf(device)+":0"))(t)
		server := grpc.NewServer()
		server.RegisterService(&echo, nil)
		go server.Serve(l)
		defer server.Stop()
		client := labtest.Must(grpc.NewClient("passthrough:///"+l.Addr().String(),
			grpc.WithTransportCredentials(insecure.NewCredentials()),
			grpc.WithContextDialer(func(ctx context.Context, addr string) (net.Conn, error) {
				return new(rsock.Dialer).DialContext(ctx, "tcp", addr)
			})))(t)
		defer client.Close()
		ctx := labtest.Within(t, 100*time.Second)

		once := func(seed, n int) error {
			want := labtest.Must(io.ReadAll(noise(seed, n)))(t)
			var out bytesValue
			if err := client.Invoke(ctx, "/Echo/Once", &bytesValue{Value: want}, &out); err != nil {
				return err
			}
			if string(out.Value) != string(want) {
				return fmt.Errorf("%d bytes came back of %d, or others", len(out.Value), n)
			}
			return nil
		}
		t.Run("unary", func(t *testing.T) {
			for i := range 50 {
				labtest.Check(t, once(i, i*i))
			}
			var wg sync.WaitGroup
			for i := range 50 {
				wg.Go(func() {
					if err := once(i, 200000); err != nil {
						t.Error(err)
					}
				})
			}
			wg.Wait()
		})
		t.Run("stream", func(t *testing.T) {
			const messages, size = 500, 20000
			s := labtest.Must(client.NewStream(ctx, &echo.Streams[0], "/Echo/Many"))(t)
			go func() {
				for i := range messages {
					b, _ := io.ReadAll(noise(i, size))
					if err := s.SendMsg(&bytesValue{Value: b}); err != nil {
						t.Error(err)
						break
					}
				}
				s.CloseSend()
			}()
			for i := range messages {
				var in bytesValue
				labtest.Check(t, s.RecvMsg(&in))
				want, _ := io.ReadAll(noise(i, size))
				if string(in.Value) != string(want) {
					t.Fatalf("message %d is wrong", i)
				}
			}
			if err := s.RecvMsg(new(bytesValue)); err != io.EOF {
				t.Errorf("at the end: %v", err)
			}
		})
	})
}
