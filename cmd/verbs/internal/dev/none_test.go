//go:build linux

package dev

import (
	"context"
	"errors"
	"io/fs"
	"strings"
	"syscall"
	"testing"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/internal/labtest"
	"github.com/goverbs/verbs/rdmadev"
)

// TestNone runs the commands that list devices where there are none: the answer is an error, and
// with --json an empty list.
func TestNone(t *testing.T) {
	source = rdmadev.Source{Sys: t.TempDir()}
	t.Cleanup(func() { source = rdmadev.Source{} })
	type command interface{ Run(context.Context) error }
	for name, commands := range map[string][2]command{
		"devices":  {&Devices{}, &Devices{JSON: true}},
		"ports":    {&Ports{}, &Ports{JSON: true}},
		"counters": {&Counters{}, &Counters{JSON: true}},
		"res":      {&Res{Kind: "all"}, &Res{Kind: "all", JSON: true}},
		"res qp":   {&Res{Kind: "qp"}, &Res{Kind: "qp", JSON: true}},
		"stat":     {&statShow{}, &statShow{JSON: true}},
	} {
		for i, want := range []string{"", "[]\n"} {
			var err error
			out := labtest.Output(t, func() { err = commands[i].Run(t.Context()) })
			if out != want || !errors.Is(err, verbs.ErrNoDevice) {
				t.Errorf("%s: %q, %v", name, out, err)
			}
		}
	}
}

// TestPrivileged says what changing a device needs.
func TestPrivileged(t *testing.T) {
	err := privileged(syscall.EPERM)
	if !errors.Is(err, fs.ErrPermission) || !strings.Contains(err.Error(), "CAP_NET_ADMIN") {
		t.Error(err)
	}
	if err := privileged(syscall.EBUSY); err != syscall.EBUSY {
		t.Error(err)
	}
}
