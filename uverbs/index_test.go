//go:build linux

package uverbs_test

import (
	"encoding/json"
	"errors"
	"os/exec"
	"testing"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/internal/labtest"
	"github.com/goverbs/verbs/uverbs"
)

func TestIndex(t *testing.T) {
	labtest.RequireKernel(t)
	for _, d := range labtest.Must(uverbs.Devices())(t) {
		var want []struct {
			Name  string `json:"ifname"`
			Index int    `json:"ifindex"`
		}
		out := labtest.Must(exec.Command("rdma", "-j", "dev", "show", d.Name).Output())(t)
		if err := json.Unmarshal(out, &want); err != nil || len(want) != 1 || want[0].Name != d.Name {
			t.Fatalf("rdma shows %s, %v", out, err)
		}
		if i, err := d.Index(); err != nil || i != want[0].Index {
			t.Errorf("%s: %d, %v, want %d", d.Name, i, err, want[0].Index)
		}
		if found, err := uverbs.FindIndex(want[0].Index); err != nil || found != d {
			t.Errorf("device %d: %+v, %v, want %+v", want[0].Index, found, err, d)
		}
	}
	if _, err := (uverbs.Device{Name: "nosuch"}).Index(); !errors.Is(err, verbs.ErrNoDevice) {
		t.Errorf("no such device: %v", err)
	}
	if _, err := uverbs.FindIndex(1 << 20); !errors.Is(err, verbs.ErrNoDevice) {
		t.Errorf("no device with that index: %v", err)
	}
}
