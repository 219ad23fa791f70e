//go:build linux

package check

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/alecthomas/kong"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/cm"
	"github.com/goverbs/verbs/cmd/verbs/internal/cli"
	"github.com/goverbs/verbs/internal/labtest"
	"github.com/goverbs/verbs/internal/scenario"
	"github.com/goverbs/verbs/soft"
	"github.com/goverbs/verbs/uverbs"
	"github.com/goverbs/verbs/verbstest"
)

// command runs verbs check in this process, which alone has the device in user space.
func command(ctx context.Context, stdout, stderr io.Writer, args ...string) error {
	p, err := kong.New(new(Cmd), kong.Writers(stdout, stderr), kong.BindTo(ctx, (*context.Context)(nil)))
	if err != nil {
		return err
	}
	k, err := p.Parse(args)
	if err != nil {
		return err
	}
	return k.Run()
}

// reported runs verbs check --json and returns the report, and the scenarios by their results.
func reported(t *testing.T, args ...string) (r report, names map[string][]string, err error) {
	t.Helper()
	var out bytes.Buffer
	err = command(t.Context(), &out, t.Output(), append(args, "--json")...)
	if jerr := json.Unmarshal(out.Bytes(), &r); jerr != nil {
		t.Fatalf("%v, %v: %q", err, jerr, &out)
	}
	names = map[string][]string{}
	for _, o := range r.Scenarios {
		names[o.Result] = append(names[o.Result], o.Scenario)
		if o.Result != passed {
			text, _ := json.Marshal(o)
			t.Logf("%s", text)
		}
	}
	return r, names, err
}

// TestLoopback runs all scenarios on each device: they pass, or the device does not have the
// feature.
func TestLoopback(t *testing.T) {
	labtest.Require(t)
	labtest.Each(t, func(t *testing.T, device string) {
		r, names, err := reported(t, "-d", device, "--duration", "20ms")
		if err != nil || len(names[failed]) > 0 || len(r.Scenarios) != len(scenario.List) {
			t.Errorf("%v; of %d scenarios, %d have been run and failed: %q", err, len(scenario.List), len(r.Scenarios), names[failed])
		}
		ctx := labtest.OpenDevice(t, device)
		_, noCM := cm.DeviceAddrs(ctx.Device()) // as on InfiniBand without IPoIB
		for _, o := range r.Scenarios {
			s := scenario.List[index(o)]
			missing := s.CM && noCM != nil || s.NoIWARP != "" && ctx.Device().IWARP() || s.NoSIW != "" && ctx.Driver() == "siw" ||
				slices.ContainsFunc(s.Features, func(f uverbs.Feature) bool { return !slices.Contains(r.Machine.Features, string(f)) })
			if missing != (o.Result == refused) {
				t.Errorf("%s: %s, and the device lacks a feature: %v", o.Scenario, o.Result, missing)
			}
		}
		for _, f := range r.Figures {
			if (f.Error == "") != (noCM == nil) || f.Error == "" && (f.Latency == nil) == (f.Bandwidth == nil) {
				t.Errorf("%+v", f)
			}
		}
		if len(r.Figures) == 0 || r.Machine.Device != device || r.Machine.Driver == "" || len(r.Machine.Ports) == 0 || !r.Machine.Ports[0].Used {
			t.Errorf("%+v", r)
		}
	})
}

// index returns which scenario an outcome is of.
func index(o outcome) int {
	return slices.IndexFunc(scenario.List, func(s scenario.Scenario) bool { return s.Name == o.Scenario })
}

// serve starts a peer with a device, and returns its address.
func serve(t *testing.T, device string, args ...string) (addr string) {
	t.Helper()
	free := labtest.Must(net.Listen("tcp", "127.0.0.1:0"))(t)
	port := free.Addr().(*net.TCPAddr).Port
	free.Close()
	ctx, stop := context.WithCancel(t.Context())
	lines, stderr := io.Pipe()
	served := make(chan error, 1)
	go func() {
		served <- command(ctx, io.Discard, stderr, append(args, "-s", "-d", device, "-p", fmt.Sprint(port))...)
	}()
	labtest.Must(lines.Read(make([]byte, 100)))(t) // it is listening
	go io.Copy(io.Discard, lines)
	t.Cleanup(func() {
		stop()
		if err := <-served; err != nil {
			t.Error(err)
		}
		stderr.Close()
	})
	return fmt.Sprintf("127.0.0.1:%d", port)
}

// TestIdleClients has clients that ask for nothing, and for one scenario after whose end they send
// without an end.
func TestIdleClients(t *testing.T) {
	for _, lines := range []string{"", `{"scenario":"none"}` + "\n"} {
		synctest.Test(t, func(t *testing.T) {
			conn, end := net.Pipe()
			ended := make(chan error, 1)
			go func() {
				ended <- newLink(end, false).answer(t.Context(), port{})
				end.Close()
			}()
			go io.Copy(io.Discard, conn)
			begun := time.Now()
			for err := error(nil); err == nil && lines != ""; time.Sleep(time.Second) {
				_, err = io.WriteString(conn, lines)
				lines = "{}\n"
			}
			err := <-ended
			if took := time.Since(begun); err == nil || took > 3*patience {
				t.Errorf("the server has ended with %v after %v", err, took)
			}
		})
	}
}

// TestTooManyClients refuses the client that is one too many, and tells it why.
func TestTooManyClients(t *testing.T) {
	labtest.Require(t)
	addr := serve(t, labtest.RoCE)
	for range maxClients {
		c := labtest.Must(net.Dial("tcp", addr))(t)
		defer c.Close()
		l := newLink(c, true)
		labtest.Must(l.swap(message{Hello: &machine{}}))(t)
	}
	_, err := (&Cmd{Peer: addr}).dial(t.Context(), &machine{})
	if err == nil || !strings.Contains(err.Error(), "the server has 4 clients") {
		t.Errorf("client %d: %v", maxClients+1, err)
	}
}

// TestPeer runs them with a peer as well, which serves client after client.
func TestPeer(t *testing.T) {
	labtest.Require(t)
	labtest.Each(t, func(t *testing.T, device string) {
		peer := serve(t, device)
		r, names, err := reported(t, "-d", device, "--duration", "20ms", peer)
		if err != nil || len(names[failed]) > 0 || len(r.Scenarios) != 2*len(scenario.List) || r.Peer == nil || r.Measured != "peer" {
			t.Errorf("%v; of %d scenarios, %d have been run and failed: %q", err, 2*len(scenario.List), len(r.Scenarios), names[failed])
		}
		if !labtest.Soft {
			return // the text is the same everywhere
		}
		var out bytes.Buffer
		labtest.Check(t, command(t.Context(), &out, t.Output(), "-d", device, "--duration", "0", peer))
		for _, want := range []string{"passed    peer: SEND\n", "passed    loopback: SEND\n", "peer      verbs " + verbs.Version, " passed, 0 failed, "} {
			if !strings.Contains(out.String(), want) {
				t.Errorf("%q is not in\n%s", want, &out)
			}
		}
	})
}

// TestFault loses every request of atomics: the report says that their scenarios failed, no others,
// and the status and its fields.
func TestFault(t *testing.T) {
	network := verbstest.NewNetwork(verbstest.Options{Filter: func(p *verbstest.Packet) verbstest.Action {
		return verbstest.Action{Drop: p.Kind == verbstest.Atomic}
	}})
	defer network.Close()
	for i := range 2 {
		labtest.Made(soft.New(soft.Options{
			Name: fmt.Sprintf("faulty%d", i), Network: network, Addrs: []netip.Addr{netip.AddrFrom4([4]byte{10, 0, 0, byte(i)})},
		}))(t)
	}
	r, names, err := reported(t, "-d", "faulty0", "--duration", "0", serve(t, "faulty1"))
	r.Scenarios = slices.DeleteFunc(r.Scenarios, func(o outcome) bool {
		return o.Scenario == "connection manager" // of which these devices have none here
	})
	for _, o := range r.Scenarios {
		lost := o.With == "peer" && slices.Contains(scenario.List[index(o)].Features, uverbs.FeatureAtomics)
		if o.Result != refused && lost != (o.Result == failed) {
			t.Errorf("%s: %s, and its requests are lost: %v", o.Scenario, o.Result, lost)
		}
	}
	if err == nil || len(names[failed]) == 0 {
		t.Errorf("%v, failed: %q", err, names[failed])
	}
	o := r.Scenarios[slices.IndexFunc(r.Scenarios, func(o outcome) bool { return o.Result == failed })]
	if o.With != "peer" || o.Active == nil || len(o.Active.Completions) != 1 || verbs.WCStatus(o.Active.Completions[0].Status) != verbs.WCRetryExcErr || o.Active.Completions[0].QPNum == 0 {
		t.Errorf("%+v", o.Active)
	}
}

// TestAdapterFault lets the emulated adapter complete a request with an error.
func TestAdapterFault(t *testing.T) {
	labtest.EachAdapter(t, func(t *testing.T, device string, _ bool) {
		const faultCompletion, responderAborted = 6, 0x14 // see docs/lab.md, and MLX5_CQE_SYNDROME_REMOTE_OP_ERR
		config := labtest.Must(os.OpenFile(filepath.Join("/sys/class/infiniband", device, "device/config"), os.O_WRONLY, 0))(t)
		defer config.Close()
		sound := scenario.List[0].Run
		t.Cleanup(func() { scenario.List[0].Run = sound })
		scenario.List[0].Run = func(a *scenario.Actor) { // when the kernel's own requests, for the regions, have completed
			if a.Active {
				labtest.Must(config.WriteAt([]byte{faultCompletion, responderAborted, 1, 0}, 0x44))(t)
			}
			sound(a)
		}
		r, names, err := reported(t, "-d", device, "--duration", "0")
		if err == nil || !slices.Equal(names[failed], []string{"SEND"}) {
			t.Errorf("%v, failed: %q", err, names[failed])
		}
		// The receive completes first, and the SEND after its acknowledgement.
		if o := r.Scenarios[0]; o.Passive == nil || len(o.Passive.Completions) != 1 || verbs.WCStatus(o.Passive.Completions[0].Status) != verbs.WCRemOpErr {
			t.Errorf("%+v", o.Passive)
		}
	})
}

// TestInterrupted ends the command during a scenario: neither that nor the next ones have failed.
func TestInterrupted(t *testing.T) {
	labtest.Require(t)
	ctx, cancel := context.WithCancel(t.Context())
	sound := scenario.List[1].Run
	t.Cleanup(func() { scenario.List[1].Run = sound })
	scenario.List[1].Run = func(a *scenario.Actor) {
		cancel()
		sound(a)
	}
	var out bytes.Buffer
	err := command(ctx, &out, t.Output(), "-d", labtest.RXE, "--json")
	var r report
	labtest.Check(t, json.Unmarshal(out.Bytes(), &r))
	if !errors.Is(err, context.Canceled) || len(r.Scenarios) != 1 || r.Scenarios[0].Result == failed || len(r.Figures) > 0 {
		t.Errorf("%v, %+v", err, r)
	}
}

// TestHostilePeer answers with what is not the protocol.
func TestHostilePeer(t *testing.T) {
	labtest.Require(t)
	for name, answer := range map[string]string{
		"another protocol": "SSH-2.0-OpenSSH_9.2\r\n",
		"an early end":     `{"end":{"error":"\u001b[2J"}}` + "\n",
		"a long line":      strings.Repeat("x", 2*cli.LongestLine),
		"no machine":       "{}\n",
	} {
		t.Run(name, func(t *testing.T) {
			l := labtest.Must(net.Listen("tcp", "127.0.0.1:0"))(t)
			defer l.Close()
			go func() {
				if c, err := l.Accept(); err == nil {
					io.WriteString(c, answer)
					io.Copy(io.Discard, c)
					c.Close()
				}
			}()
			err := command(t.Context(), io.Discard, t.Output(), "-d", labtest.RXE, "--duration", "0", l.Addr().String())
			if err == nil || errors.Is(err, context.Canceled) || strings.Contains(err.Error(), "\x1b") {
				t.Errorf("%v", err)
			}
		})
	}
}

// TestTrafficClass checks that both sides of all scenarios send the traffic class.
func TestTrafficClass(t *testing.T) {
	labtest.Require(t)
	labtest.TOS(t, 104, "", func(*soft.Device, string) {
		addr := serve(t, "peer0", "--tclass", "104")
		_, names, err := reported(t, "-d", labtest.RoCE, "--duration", "20ms", "--tclass", "104", addr)
		if err != nil || len(names[failed]) > 0 {
			t.Errorf("%v, failed: %q", err, names[failed])
		}
	})
}
