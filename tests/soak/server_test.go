package soak

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/goverbs/verbs/internal/labtest"
	"github.com/goverbs/verbs/tests/workload"
)

// serverDevice is the environment variable that makes the program the server of a device.
const serverDevice = "SOAK_SERVER_DEVICE"

// answer is a line of JSON from the server: the addresses of its layers, the answer to a
// question, or a failure.
type answer struct {
	Addrs   map[string]string `json:",omitempty"`
	Process *process          `json:",omitempty"`
	Stacks  string            `json:",omitempty"`
	Failure string            `json:",omitempty"`
	Closed  bool              `json:",omitempty"` // and left these:
	Leaks   []string          `json:",omitempty"`

	// With a sample, of a device in user space:
	Layers  map[string]work `json:",omitempty"`
	Objects map[string]int  `json:",omitempty"`
}

// TestServer is the server: a process that TestSoak starts. It reads questions, "sample",
// "stacks" or "close", from its standard input. With a device in user space it dials as well,
// between "dial" and "stop".
func TestServer(t *testing.T) {
	device := os.Getenv(serverDevice)
	if device == "" {
		t.Skip("TestSoak runs it")
	}
	out := os.NewFile(3, "answers")
	var mu sync.Mutex
	say := func(a answer) {
		mu.Lock()
		defer mu.Unlock()
		if err := json.NewEncoder(out).Encode(a); err != nil {
			t.Error(err)
		}
	}
	selectLayers()
	s := &side{device: device, addr: labtest.AddrOf(device), report: func(f string) { say(answer{Failure: f}) }}
	var soft *softDevice
	if device == userSpace {
		soft = newSoftDevice(t, s)
	} else {
		s.layers = layersOf(t, device)
	}
	warmUp(t, s)
	before := inventory(t, false)
	s.ctx, s.cancel = context.WithCancel(t.Context())
	defer s.cancel()
	servers, addrs, err := s.listenAll()
	labtest.Check(t, err)
	say(answer{Addrs: addrs})
	for in := bufio.NewScanner(os.Stdin); in.Scan() && in.Text() != "close"; {
		switch what, text, _ := strings.Cut(in.Text(), " "); what {
		case "stacks":
			say(answer{Stacks: stacks()})
		case "dial":
			labtest.Check(t, soft.dial(text))
			say(answer{})
		case "stop":
			labtest.Check(t, soft.stop())
			say(answer{})
		default:
			p := labtest.Must(thisProcess())(t)
			a := answer{Process: &p}
			if soft != nil {
				soft.sample(&a)
			}
			say(a)
		}
	}
	s.end(servers)
	left := leaks(t, false, before)
	if soft != nil {
		left = append(left, soft.close(t)...)
	}
	say(answer{Closed: true, Leaks: left})
}

// listenAll starts the servers of all layers.
func (s *side) listenAll() (servers []*workload.Server, addrs map[string]string, err error) {
	addrs = map[string]string{}
	for _, l := range s.layers {
		v, err := s.listen(l)
		if err != nil {
			return nil, nil, fmt.Errorf("%s: %w", l.Name, err)
		}
		addrs[l.Name] = v.Addr
		servers = append(servers, v)
	}
	return servers, addrs, nil
}

// end closes the servers. Connections end because their peers have ended. Those whose peer
// gave up connecting may still wait for it, until they are canceled.
func (s *side) end(servers []*workload.Server) {
	ended := make(chan error, len(servers))
	for _, v := range servers {
		go func() { ended <- v.Close() }()
	}
	defer time.AfterFunc(30*time.Second, s.cancel).Stop()
	late := time.After(90 * time.Second)
	for range servers {
		select {
		case err := <-ended:
			if err != nil {
				s.report("server, closing: " + err.Error())
			}
		case <-late:
			s.report("connections do not end\n" + stacks())
			return
		}
	}
}

// server is the server process, as its client sees it.
type server struct {
	cmd     *exec.Cmd
	send    func(what string) error
	answers chan answer
	gone    chan struct{} // closed at the end of its answers
	addrs   map[string]string
}

func startServer(s *side, seed uint64) (*server, error) {
	args, device := []string{os.Args[0], "-test.run=^TestServer$", "-test.timeout=0", fmt.Sprint("-stall=", *stall), fmt.Sprint("-pace=", *pace), fmt.Sprint("-seed=", seed+1), "-layers=" + *only}, s.device
	if s.faults {
		args, device = append([]string{"nsenter", "--net=/run/netns/" + softSpace}, args...), userSpace
	}
	v := &server{cmd: exec.Command(args[0], args[1:]...), answers: make(chan answer), gone: make(chan struct{})}
	v.cmd.Env = append(os.Environ(), serverDevice+"="+device)
	v.cmd.Stdout, v.cmd.Stderr = os.Stderr, os.Stderr
	r, w, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	v.cmd.ExtraFiles = []*os.File{w}
	stdin, err := v.cmd.StdinPipe()
	if err != nil {
		return nil, errors.Join(err, r.Close(), w.Close())
	}
	err = v.cmd.Start()
	w.Close()
	if err != nil {
		return nil, errors.Join(err, r.Close())
	}
	v.send = func(what string) error {
		_, err := fmt.Fprintln(stdin, what)
		return err
	}
	go func() {
		defer r.Close()
		defer close(v.gone)
		for d := json.NewDecoder(r); ; {
			var a answer
			if err := d.Decode(&a); err != nil {
				return
			}
			if a.Failure != "" {
				s.report(a.Failure)
				s.endSoon()
				continue
			}
			select {
			case v.answers <- a:
			case <-time.After(time.Minute): // the client no longer waits for it
			}
		}
	}()
	a, err := v.answer(2 * time.Minute)
	v.addrs = a.Addrs
	return v, err
}

// answer waits for an answer.
func (v *server) answer(limit time.Duration) (a answer, err error) {
	select {
	case a = <-v.answers:
		return a, nil
	case <-v.gone:
		return a, errors.New("the server is gone")
	case <-time.After(limit):
		return a, fmt.Errorf("the server does not answer in %v", limit)
	}
}

// ask sends a question and waits for the answer.
func (v *server) ask(what string, limit time.Duration) (answer, error) {
	if err := v.send(what); err != nil {
		return answer{}, err
	}
	return v.answer(limit)
}

// dial makes the server dial the servers of this process.
func (v *server) dial(addrs map[string]string) error {
	text, err := json.Marshal(addrs)
	if err == nil {
		_, err = v.ask("dial "+string(text), time.Minute)
	}
	return err
}

// close ends the server, and returns its leaks.
func (v *server) close() (leaks []string, err error) {
	a, err := v.ask("close", 4*time.Minute)
	if err != nil {
		v.cmd.Process.Signal(syscall.SIGQUIT) // prints its stacks
		time.AfterFunc(10*time.Second, func() { v.cmd.Process.Kill() })
	}
	return a.Leaks, errors.Join(err, v.cmd.Wait())
}
