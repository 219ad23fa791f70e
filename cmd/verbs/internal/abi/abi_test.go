//go:build linux

package abi

import (
	"bytes"
	"strings"
	"testing"

	"github.com/goverbs/verbs/cmd/verbs/internal/abicheck"
	"github.com/goverbs/verbs/internal/labtest"
)

// TestABI checks that every structure is in the table, and that this kernel, whatever its
// version, is compatible.
func TestABI(t *testing.T) {
	labtest.RequireKernel(t)
	if testing.Short() {
		t.Skip("reading the kernel's types once more takes a while, and cmd/verbs/internal/abicheck compares them")
	}
	k, err := abicheck.Open()
	if err != nil {
		t.Fatal(err)
	}
	results := k.Used()
	if err := breaks(results); err != nil {
		t.Error(err)
	}
	var b bytes.Buffer
	if err := (&Cmd{All: true}).print(&b, results); err != nil {
		t.Fatal(err)
	}
	t.Logf("%s", b.String())
	same := 0
	for _, r := range results {
		if !strings.Contains(b.String(), strings.TrimPrefix(r.Type, "struct ")) {
			t.Errorf("%s is not in the table", r.Type)
		}
		if r.Status == abicheck.Same {
			same++
		}
	}
	if same < 60 || len(results) < 80 {
		t.Errorf("%d of %d are the same", same, len(results))
	}
}

// TestABIUnknown tells a kernel without InfiniBand from one that lacks structures of it.
func TestABIUnknown(t *testing.T) {
	results := []abicheck.Result{
		{Type: "struct ib_uverbs_attr", Status: abicheck.Unknown}, {Type: "struct rxe_send_wqe", Status: abicheck.Unknown}, {Type: "struct sockaddr_in", Status: abicheck.Same},
	}
	if !unknown(results) {
		t.Error("structures of the network are taken for InfiniBand's")
	}
	results[0].Status = abicheck.Same
	if unknown(results) {
		t.Error("a structure of InfiniBand is overlooked")
	}
}

// TestABIBreaks checks that incompatible structures are listed and the command fails.
func TestABIBreaks(t *testing.T) {
	results := []abicheck.Result{
		{Type: "struct siw_cqe", Feature: "siw: completions", Status: abicheck.Differs, Breaks: true, Why: "because", Moved: []string{"id: at 0 size 8"}},
		{Type: "struct siw_sqe", Feature: "siw: sending", Status: abicheck.Same},
		{Type: "struct siw_rqe", Feature: "siw: receiving", Status: abicheck.Newer, Why: "room"},
	}
	var b bytes.Buffer
	if err := new(Cmd).print(&b, results); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"breaks: because", "id: at 0 size 8", "works: room", "3 structures are shared with the kernel: 1 the same, 1 have more members there and 0 fewer, 1 differ, 0 are not known"} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("no %q in\n%s", want, b.String())
		}
	}
	if strings.Contains(b.String(), "siw_sqe") {
		t.Errorf("what is the same is listed:\n%s", b.String())
	}
	if err := breaks(results); err == nil || !strings.Contains(err.Error(), "siw: completions (struct siw_cqe)") {
		t.Error(err)
	}
	if err := breaks(results[1:]); err != nil {
		t.Error(err)
	}
}
