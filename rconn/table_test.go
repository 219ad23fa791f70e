//go:build linux

package rconn

import (
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/goverbs/verbs/internal/labtest"
)

// libiwarp lists the names in libiwarp's README: its functions, its types, and the
// arguments that have their own counterpart.
var libiwarp = strings.Fields(`
	iw_ctx_conn iw_ctx_alloc remote_addr remote_port qp_capacity shared_pd
	iw_connect iw_open listen_addr port backlog iw_listen iw_accept priv_data
	iw_lmr iw_lmr_create iw_lmr_register access_flags iw_lmr_destroy free_buf_flag
	iw_rmr iw_post_send_adv iw_post_recv_adv iw_wait_recv_adv
	iw_sgl post_recv_sgl post_recv_lmr post_send_sgl post_send_lmr
	post_write_sgl post_write_lmr post_read_sgl post_read_lmr send_flags
	await_completions cq_type IW_SCQ IW_RCQ num_wcs wc_list
	iw_disconnect iw_await_disconnect
	libibverbs librdmacm
`)

// TestTable checks the table for libiwarp's users: it has exactly libiwarp's names, and
// the tests and functions that it lists exist.
func TestTable(t *testing.T) {
	if os.Getenv("VERBS_LAB") != "" {
		t.Skip("reads the sources, which need not be here")
	}
	tests, names := labtest.Declarations(t, ".")
	src, err := os.ReadFile("doc.go")
	if err != nil {
		t.Fatal(err)
	}
	_, table, ok := strings.Cut(string(src), "libiwarp                              here")
	if !ok {
		t.Fatal("there is no table")
	}
	table, _, _ = strings.Cut(table, "//\n")

	left := slices.Clone(libiwarp)
	for line := range strings.Lines(table) {
		row := regexp.MustCompile(`^//\t(.{37}) (.{35}) (.+)\n$`).FindStringSubmatch(line)
		if row == nil {
			if strings.HasPrefix(line, "//") {
				t.Errorf("not a row: %q", line)
			}
			continue
		}
		for c := range strings.SplitSeq(strings.TrimSpace(row[1]), ", ") {
			switch i := slices.Index(left, c); {
			case c == "-":
			case i < 0:
				t.Errorf("libiwarp has no %s, or it has a row already", c)
			default:
				left = slices.Delete(left, i, i+1)
			}
		}
		for test := range strings.SplitSeq(row[3], ", ") {
			if !tests[test] {
				t.Errorf("%s: there is no test %s", strings.TrimSpace(row[1]), test)
			}
		}
		for _, name := range regexp.MustCompile(`\b(verbs\.)?[A-Z]\w+(\.\w+)?`).FindAllString(row[2], -1) {
			if !strings.HasPrefix(name, "verbs.") && !names[name] && !names["Options."+name] && !names["Conn."+name] {
				t.Errorf("%s: there is no %s", strings.TrimSpace(row[1]), name)
			}
		}
	}
	if len(left) > 0 {
		t.Errorf("the table lacks %v", left)
	}
}

// TestRequestTable checks that the methods in the table of requests exist.
func TestRequestTable(t *testing.T) {
	if os.Getenv("VERBS_LAB") != "" {
		t.Skip("reads the sources, which need not be here")
	}
	_, names := labtest.Declarations(t, ".")
	src, err := os.ReadFile("doc.go")
	if err != nil {
		t.Fatal(err)
	}
	rows := regexp.MustCompile(`(?m)^//\t.{34} (\w+(?:, \w+)*) +(?:yes|no|Linux [\d.]+) +(?:yes|no)$`).FindAllStringSubmatch(string(src), -1)
	if len(rows) != 9 {
		t.Errorf("%d rows", len(rows))
	}
	for _, row := range rows {
		for name := range strings.SplitSeq(row[1], ", ") {
			if !names["Conn."+name] {
				t.Errorf("there is no Conn.%s", name)
			}
		}
	}
}
