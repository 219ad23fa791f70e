package rdmadev

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"flag"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/goverbs/verbs/internal/nldev"
)

var record = flag.String("record", "", "record the answers of this kernel in a `folder`, where programs use rxe0 and siw0")

// recording holds what a kernel answered about a device, and what this package made of it.
type recording struct {
	Device    string
	Index     int
	Exchanges []exchange
	Want      map[string]json.RawMessage
}

type exchange struct {
	Command int
	Dump    bool
	Request []byte
	Answers [][]byte
	Err     string `json:",omitempty"`
}

// readAll returns everything that is asked over netlink about a device with one port.
func readAll(t *testing.T, d Device) map[string]json.RawMessage {
	all := map[string]json.RawMessage{}
	for name, read := range map[string]func() (any, error){
		"counts":            func() (any, error) { return d.Counts() },
		"QPs":               func() (any, error) { return d.QPs() },
		"CQs":               func() (any, error) { return d.CQs() },
		"MRs":               func() (any, error) { return d.MRs() },
		"PDs":               func() (any, error) { return d.PDs() },
		"contexts":          func() (any, error) { return d.Contexts() },
		"CM IDs":            func() (any, error) { return d.CMIDs() },
		"SRQs":              func() (any, error) { return d.SRQs() },
		"hardware counters": func() (any, error) { return d.HardwareCounters(1) },
		"QP counters":       func() (any, error) { return d.QPCounters() },
		"MR counters":       func() (any, error) { return d.MRCounters() },
		"counter mode":      func() (any, error) { return d.CounterMode(1) },
		"optional counters": func() (any, error) { return d.OptionalCounters(1) },
	} {
		v, err := read()
		if err != nil {
			v = err.Error()
		}
		all[name] = toJSON(t, v)
	}
	return all
}

// TestRecorded reads the answers that kernels gave in the lab.
func TestRecorded(t *testing.T) {
	if *record != "" {
		for _, name := range []string{"rxe0", "siw0"} {
			recordDevice(t, name)
		}
	}
	if binary.NativeEndian.Uint16([]byte{1, 0}) != 1 {
		t.Skip("the answers are those of little-endian machines")
	}
	files, err := filepath.Glob("testdata/netlink/*.json")
	if err != nil || len(files) == 0 {
		t.Fatalf("%d recordings, %v", len(files), err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".json"), func(t *testing.T) {
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			var r recording
			if err := json.Unmarshal(text, &r); err != nil {
				t.Fatal(err)
			}
			got := readAll(t, Device{Name: r.Device, Index: r.Index, src: Source{ask: r.replay}})
			for name, want := range r.Want {
				if want = toJSON(t, want); !bytes.Equal(got[name], want) {
					t.Errorf("%s: %s, want %s", name, got[name], want)
				}
			}
			if len(got) != len(r.Want) {
				t.Errorf("%d answers, want %d", len(got), len(r.Want))
			}
		})
	}
}

// toJSON returns v as JSON, with members in order of their names, and without what /proc has
// about threads.
func toJSON(t *testing.T, v any) []byte {
	t.Helper()
	b, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	d := json.NewDecoder(bytes.NewReader(b))
	d.UseNumber()
	var parsed any
	if err := d.Decode(&parsed); err != nil {
		t.Fatal(err)
	}
	if list, ok := parsed.([]any); ok {
		for _, e := range list {
			if m, ok := e.(map[string]any); ok {
				delete(m, "PID")
				delete(m, "Comm")
			}
		}
	}
	if b, err = json.Marshal(parsed); err != nil {
		t.Fatal(err)
	}
	return b
}

// replay answers as the kernel did.
func (r *recording) replay(cmd int, dump bool, request nldev.Attrs, each func(nldev.Attrs) error) error {
	for _, x := range r.Exchanges {
		if x.Command != cmd || x.Dump != dump || !bytes.Equal(x.Request, request) {
			continue
		}
		for _, a := range x.Answers {
			if err := each(nldev.Attrs(a)); err != nil {
				return err
			}
		}
		if x.Err != "" {
			return errors.New(x.Err)
		}
		return nil
	}
	return errors.New("not recorded")
}

func recordDevice(t *testing.T, name string) {
	t.Helper()
	d, err := Find(name)
	if err != nil {
		t.Fatal(err)
	}
	r := recording{Device: d.Name, Index: d.Index}
	kernel := d
	d.src.ask = func(cmd int, dump bool, request nldev.Attrs, each func(nldev.Attrs) error) error {
		x := exchange{Command: cmd, Dump: dump, Request: request}
		err := kernel.ask(cmd, dump, request[len(kernel.handle()):], func(a nldev.Attrs) error {
			x.Answers = append(x.Answers, slices.Clone(a))
			return each(a)
		})
		if err != nil {
			x.Err = err.Error()
		}
		r.Exchanges = append(r.Exchanges, x)
		return err
	}
	r.Want = readAll(t, d)
	text, err := json.MarshalIndent(&r, "", "\t")
	if err != nil {
		t.Fatal(err)
	}
	release, err := os.ReadFile("/proc/sys/kernel/osrelease")
	if err != nil {
		t.Fatal(err)
	}
	version := strings.Join(strings.Split(string(release), ".")[:2], ".")
	if err := os.WriteFile(filepath.Join(*record, version+"-"+name+".json"), append(text, '\n'), 0o644); err != nil {
		t.Fatal(err)
	}
}
