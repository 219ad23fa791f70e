package dev

import (
	"bytes"
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/goverbs/verbs/cm"
	"github.com/goverbs/verbs/cm/conns"
	"github.com/goverbs/verbs/cmd/verbs/internal/cli"
)

type source1 []cm.ConnInfo

func (s source1) Conns() []cm.ConnInfo { return s }

// TestConns prints the connections that a program serves, the one that waits for the longest time first.
func TestConns(t *testing.T) {
	now := time.Now()
	type traffic struct{ Requests, Bytes uint64 }
	server := httptest.NewServer(conns.Handler(source1{
		{Layer: "rmsg", Device: "rxe7", QPNum: 17, Local: "10.0.0.1:1", Remote: "10.0.0.2:2", State: "established", Since: now.Add(-2 * time.Hour)},
		{
			Layer: "rsock", Device: "rxe7", QPNum: 18, Local: "10.0.0.1:1", Remote: "\x1b[2J", State: "open", Since: now,
			Waits: []cm.Wait{{For: "Read: data of the peer", Since: now.Add(-time.Minute)}, {For: "credits"}},
			Stats: struct {
				Sends traffic
				Depth int
			}{traffic{Bytes: 1 << 30}, 0},
		},
	}))
	defer server.Close()
	var out bytes.Buffer
	if err := (&Conns{URL: server.URL, Stats: true}).print(t.Context(), &out); err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSpace(out.String()), "\n")
	for i, want := range []string{
		"LAYER  DEVICE  QP  KERNEL  LOCAL       REMOTE      AGE     STATE        WAITS FOR                               STATS",
		`rsock  rxe7    18  -       10.0.0.1:1  \x1b[2J     _       open         Read: data of the peer (1m0s); credits  Sends.Bytes=1073741824`,
		"rmsg   rxe7    17  -       10.0.0.1:1  10.0.0.2:2  2h0m0s  established  -                                       -",
	} {
		if got := strings.Fields(lines[i]); fmt.Sprint(got[:6], got[7:]) != fmt.Sprint(strings.Fields(want)[:6], strings.Fields(want)[7:]) {
			t.Errorf("%s\nwant\n%s", lines[i], want)
		}
	}
	for id, want := range map[string]bool{conns.Machine(): true, "another": false, "": false} {
		h := http.Header{}
		h.Set(conns.MachineHeader, id)
		if onThisMachine(h) != want {
			t.Errorf("%q is this machine: %v", id, !want)
		}
	}
	if text := new(bytes.Buffer); new(Conns).list(text, source1{{Device: "rxe7", QPNum: 5}}, map[string]string{"rxe7 5": "ERR"}, now) != nil || !strings.Contains(text.String(), "ERR") {
		t.Errorf("%q has no state of the kernel", text)
	}
}

// TestConnsRefused has a clear error for what is no list of connections.
func TestConnsRefused(t *testing.T) {
	answer := ""
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if answer == "" {
			http.NotFound(w, r)
		}
		fmt.Fprint(w, answer)
	}))
	defer server.Close()
	for _, c := range []struct{ url, answer, want string }{
		{server.URL, "", "404 Not Found"},
		{server.URL, "<html>", "package cm/conns"},
		{"mlx5_0", "", "no URL"},
	} {
		answer = c.answer
		err := (&Conns{URL: c.url}).print(context.Background(), new(bytes.Buffer))
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%v, want %q", err, c.want)
		}
	}
	if _, ok := (&Conns{URL: "x"}).print(t.Context(), nil).(*cli.UsageError); !ok {
		t.Error("a bad URL is no mistake in the command line")
	}
}
