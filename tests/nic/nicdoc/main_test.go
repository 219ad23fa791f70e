package main

import (
	"strings"
	"testing"
)

func TestTable(t *testing.T) {
	out := newTable()
	check(t, out.read(strings.NewReader(`{"Action":"start","Package":"github.com/goverbs/verbs/tests/nic"}
{"Action":"output","Output":"nic: kernel 6.12.1-amd64, libmlx5 44.0, Ethernet\n"}
{"Action":"run","Package":"github.com/goverbs/verbs/tests/nic","Test":"TestPerftest"}
{"Action":"run","Package":"github.com/goverbs/verbs/tests/nic","Test":"TestPerftest/ib_send_lat"}
{"Action":"run","Package":"github.com/goverbs/verbs/tests/nic","Test":"TestPerftest/ib_send_lat/-s_1"}
{"Action":"pass","Package":"github.com/goverbs/verbs/tests/nic","Test":"TestPerftest/ib_send_lat/-s_1"}
{"Action":"run","Package":"github.com/goverbs/verbs/tests/nic","Test":"TestPerftest/ib_send_lat/-R"}
{"Action":"output","Package":"github.com/goverbs/verbs/tests/nic","Test":"TestPerftest/ib_send_lat/-R","Output":"    a_test.go:1: no address\n"}
{"Action":"skip","Package":"github.com/goverbs/verbs/tests/nic","Test":"TestPerftest/ib_send_lat/-R"}
{"Action":"pass","Package":"github.com/goverbs/verbs/tests/nic","Test":"TestPerftest/ib_send_lat"}
{"Action":"run","Package":"github.com/goverbs/verbs/tests/nic","Test":"TestPerftest/ib_send_bw"}
{"Action":"run","Package":"github.com/goverbs/verbs/tests/nic","Test":"TestPerftest/ib_send_bw/-s_1"}
{"Action":"fail","Package":"github.com/goverbs/verbs/tests/nic","Test":"TestPerftest/ib_send_bw/-s_1"}
{"Action":"fail","Package":"github.com/goverbs/verbs/tests/nic","Test":"TestPerftest/ib_send_bw"}
{"Action":"fail","Package":"github.com/goverbs/verbs/tests/nic","Test":"TestPerftest"}
{"Action":"run","Package":"github.com/goverbs/verbs/tests/nic","Test":"TestLog"}
{"Action":"run","Package":"github.com/goverbs/verbs/tests/nic","Test":"TestLog/some"}
{"Action":"pass","Package":"github.com/goverbs/verbs/tests/nic","Test":"TestLog/some"}
{"Action":"fail","Package":"github.com/goverbs/verbs/tests/nic","Test":"TestLog"}
{"Action":"run","Package":"github.com/goverbs/verbs/tests/nic","Test":"TestPairs"}
{"Action":"fail","Package":"github.com/goverbs/verbs/tests/nic"}
`), "first"))
	check(t, out.read(strings.NewReader(`{"Action":"run","Package":"github.com/goverbs/verbs/tests/nic","Test":"TestPairs"}
{"Action":"pass","Package":"github.com/goverbs/verbs/tests/nic","Test":"TestPairs"}
`), "second"))
	const want = `| | kernel 6.12.1-amd64, libmlx5 44.0, Ethernet | second |
|---|---|---|
| TestPerftest/ib_send_lat | 1 (1) |  |
| TestPerftest/ib_send_bw | **1 of 1 fail** |  |
| TestLog/some | 1 |  |
| TestLog | **1 of 1 fail** |  |
| TestPairs |  | 1 |

Failed on kernel 6.12.1-amd64, libmlx5 44.0, Ethernet: tests/nic/TestPerftest/ib_send_bw/-s_1

Failed on kernel 6.12.1-amd64, libmlx5 44.0, Ethernet: tests/nic/TestLog

Skipped, in all runs together:

- 1 of TestPerftest/ib_send_lat: no address
`
	if out.String() != want {
		t.Errorf("got\n%s\nwant\n%s", out, want)
	}
	if err := newTable().read(strings.NewReader(`{"Action":"start"}`), "nic"); err == nil {
		t.Error("a run without tests has a table")
	}
}

func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func TestPackages(t *testing.T) {
	const start = `{"Action":"start","Package":"github.com/goverbs/verbs/cm"}
`
	out := newTable()
	check(t, out.read(strings.NewReader(start+`{"Action":"run","Package":"github.com/goverbs/verbs/cm","Test":"TestA"}
{"Action":"run","Package":"github.com/goverbs/verbs/cm","Test":"TestA/mlx5_0"}
{"Action":"pass","Package":"github.com/goverbs/verbs/cm","Test":"TestA/mlx5_0"}
{"Action":"pass","Package":"github.com/goverbs/verbs/cm","Test":"TestA"}
{"Action":"run","Package":"github.com/goverbs/verbs/cm","Test":"TestB"}
{"Action":"output","Package":"github.com/goverbs/verbs/cm","Test":"TestB","Output":"    b_test.go:1: takes long\n"}
{"Action":"skip","Package":"github.com/goverbs/verbs/cm","Test":"TestB"}
{"Action":"pass","Package":"github.com/goverbs/verbs/cm"}
`), "6.12-connectx"))
	check(t, out.read(strings.NewReader(start+`{"Action":"fail","Package":"github.com/goverbs/verbs/cm"}
`), "7.3-connectx-ib"))
	const want = `| | 6.12-connectx | 7.3-connectx-ib |
|---|---|---|
| cm | 1 (1) | **1 of 1 fail** |

Failed on 7.3-connectx-ib: cm

Skipped, in all runs together:

- 1 of cm: takes long
`
	if out.String() != want {
		t.Errorf("got\n%s\nwant\n%s", out, want)
	}
}
