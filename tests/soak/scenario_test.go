package soak

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"slices"
	"time"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/internal/endpoint"
	"github.com/goverbs/verbs/internal/scenario"
	"github.com/goverbs/verbs/tests/workload"
	"github.com/goverbs/verbs/uverbs"
)

func init() { endpoint.Limit = time.Minute } // the machine is busy

// reliable are the scenarios that lose nothing when queues are full.
var reliable = slices.DeleteFunc(slices.Clone(scenario.List), func(s scenario.Scenario) bool {
	return s.Type == verbs.UC || s.Type == verbs.UD
})

// play plays a role of a scenario. The actors have each other's addresses by conn, which leads to
// and from an address of the device.
func play(ctx context.Context, conn net.Conn, i int, active bool) error {
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { conn.Close() })()
	dev, err := uverbs.Open(conn.LocalAddr().(*net.TCPAddr).IP.String())
	if err != nil {
		return err
	}
	defer dev.Close()
	in, out := json.NewDecoder(conn), json.NewEncoder(conn)
	a := scenario.Actor{Ctx: ctx, Active: active, Swap: func(m endpoint.Address) (endpoint.Address, error) {
		var remote endpoint.Address
		err := out.Encode(m)
		if err == nil {
			err = in.Decode(&remote)
		}
		return remote, err
	}}
	defer a.Close()
	s := &reliable[i]
	if s.Missing(dev) != nil {
		return nil
	}
	if err = a.Play(s, endpoint.Port{Dev: dev}); err == nil {
		_, err = a.Swap(endpoint.Address{}) // both have ended
	}
	if err != nil {
		err = fmt.Errorf("scenario %q: %w", s.Name, err)
	}
	return err
}

func listenScenarios(ctx context.Context, addr string, report func(error)) (*workload.Server, error) {
	l, err := net.Listen("tcp", addr)
	if err != nil {
		return nil, err
	}
	accept := func(context.Context) (net.Conn, error) { return l.Accept() }
	return workload.Serve(ctx, l, accept, func(ctx context.Context, conn net.Conn) error {
		var i [1]byte
		if _, err := conn.Read(i[:]); err != nil {
			return errors.Join(err, conn.Close())
		}
		return play(ctx, conn, int(i[0]), false)
	}, report, nil), nil
}

func runScenario(ctx context.Context, _ *side, addr string, r *rand.Rand, n *count) error {
	conn, err := new(net.Dialer).DialContext(ctx, "tcp", addr)
	if err != nil {
		return err
	}
	i := r.IntN(len(reliable))
	if _, err := conn.Write([]byte{byte(i)}); err != nil {
		return errors.Join(err, conn.Close())
	}
	n.add(0)
	return play(ctx, conn, i, true)
}
