package main

import (
	"strings"
	"testing"
)

func TestTable(t *testing.T) {
	one, err := read(strings.NewReader(`{"Action":"start"}
{"Action":"output","Output":"nic: kernel 6.12.1-amd64, libmlx5 44.0, Ethernet\n"}
{"Action":"run","Test":"TestPerftest"}
{"Action":"run","Test":"TestPerftest/ib_send_lat"}
{"Action":"run","Test":"TestPerftest/ib_send_lat/-s_1"}
{"Action":"pass","Test":"TestPerftest/ib_send_lat/-s_1"}
{"Action":"run","Test":"TestPerftest/ib_send_lat/-R"}
{"Action":"output","Test":"TestPerftest/ib_send_lat/-R","Output":"    a_test.go:1: no address\n"}
{"Action":"skip","Test":"TestPerftest/ib_send_lat/-R"}
{"Action":"pass","Test":"TestPerftest/ib_send_lat"}
{"Action":"run","Test":"TestPerftest/ib_send_bw"}
{"Action":"run","Test":"TestPerftest/ib_send_bw/-s_1"}
{"Action":"fail","Test":"TestPerftest/ib_send_bw/-s_1"}
{"Action":"fail","Test":"TestPerftest/ib_send_bw"}
{"Action":"fail","Test":"TestPerftest"}
{"Action":"run","Test":"TestLog"}
{"Action":"run","Test":"TestLog/some"}
{"Action":"pass","Test":"TestLog/some"}
{"Action":"fail","Test":"TestLog"}
{"Action":"run","Test":"TestPairs"}
`), "nic.json")
	if err != nil {
		t.Fatal(err)
	}
	two, err := read(strings.NewReader(`{"Action":"output","Output":"nic: kernel 7.3.1-amd64, libmlx5 60.0, InfiniBand\n"}
{"Action":"run","Test":"TestPairs"}
{"Action":"pass","Test":"TestPairs"}
`), "nic.json")
	if err != nil {
		t.Fatal(err)
	}
	var out strings.Builder
	write(&out, []run{one, two})
	const want = `| kernel | 6.12.1-amd64 | 7.3.1-amd64 |
| --- | --- | --- |
| libmlx5 | 44.0 | 60.0 |
| link | Ethernet | InfiniBand |
| perftest: ib_send_lat | 1 |  |
| perftest: ib_send_bw | **1 of 1 fail** |  |
| log | **1 of 1 fail** |  |
| log: some | 1 |  |
| pairs | **1 of 1 fail** | 1 |

Failed on 6.12.1-amd64, libmlx5 44.0, Ethernet: TestPerftest/ib_send_bw/-s_1

Failed on 6.12.1-amd64, libmlx5 44.0, Ethernet: TestLog

Failed on 6.12.1-amd64, libmlx5 44.0, Ethernet: TestPairs

Skipped, in all runs together:

- 1 of perftest: ib_send_lat: no address
`
	if out.String() != want {
		t.Errorf("got\n%s\nwant\n%s", &out, want)
	}
	if _, err := read(strings.NewReader(`{"Action":"start"}`), "nic.json"); err == nil {
		t.Error("a run without tests has a table")
	}
}

func TestPackages(t *testing.T) {
	const start = `{"Action":"start","Package":"github.com/goverbs/verbs/cm"}
`
	one, err := read(strings.NewReader(start+`{"Action":"run","Package":"github.com/goverbs/verbs/cm","Test":"TestA"}
{"Action":"run","Package":"github.com/goverbs/verbs/cm","Test":"TestA/mlx5_0"}
{"Action":"pass","Package":"github.com/goverbs/verbs/cm","Test":"TestA/mlx5_0"}
{"Action":"pass","Package":"github.com/goverbs/verbs/cm","Test":"TestA"}
{"Action":"run","Package":"github.com/goverbs/verbs/cm","Test":"TestB"}
{"Action":"output","Package":"github.com/goverbs/verbs/cm","Test":"TestB","Output":"    b_test.go:1: takes long\n"}
{"Action":"skip","Package":"github.com/goverbs/verbs/cm","Test":"TestB"}
{"Action":"pass","Package":"github.com/goverbs/verbs/cm"}
`), "build/adapter/6.12-connectx.json")
	if err != nil {
		t.Fatal(err)
	}
	two, err := read(strings.NewReader(start+`{"Action":"fail","Package":"github.com/goverbs/verbs/cm"}
`), "7.3-connectx-ib.json")
	if err != nil {
		t.Fatal(err)
	}
	var out strings.Builder
	write(&out, []run{one, two})
	const want = `| kernel | 6.12 | 7.3 |
| --- | --- | --- |
| link | RoCE | InfiniBand |
| cm | 1 (1) | **1 of 1 fail** |

Failed on 7.3, InfiniBand: cm

Skipped, in all runs together:

- 1 of cm: takes long
`
	if out.String() != want {
		t.Errorf("got\n%s\nwant\n%s", &out, want)
	}
}
