package main

import (
	"strings"
	"testing"
)

func TestTable(t *testing.T) {
	out := newTable()
	err := out.read(strings.NewReader(`{"Action":"start","Package":"p"}
{"Action":"run","Package":"p","Test":"TestA/rxe0"}
{"Action":"attr","Package":"p","Test":"TestA/rxe0","Key":"judge","Value":"a client"}
{"Action":"attr","Package":"p","Test":"TestA/rxe0","Key":"way","Value":"puts"}
{"Action":"attr","Package":"p","Test":"TestA/rxe0","Key":"device","Value":"rxe0"}
{"Action":"attr","Package":"p","Test":"TestA/rxe0/1_B","Key":"case","Value":"1 B"}
{"Action":"attr","Package":"p","Test":"TestA/rxe0/2_B","Key":"case","Value":"2 B"}
{"Action":"pass","Package":"p","Test":"TestA/rxe0/1_B"}
{"Action":"pass","Package":"p","Test":"TestA/rxe0/2_B"}
{"Action":"pass","Package":"p","Test":"TestA/rxe0"}
{"Action":"attr","Package":"p","Test":"TestA/mlx5_0","Key":"judge","Value":"a client"}
{"Action":"attr","Package":"p","Test":"TestA/mlx5_0","Key":"way","Value":"puts"}
{"Action":"attr","Package":"p","Test":"TestA/mlx5_0","Key":"device","Value":"mlx5_0"}
{"Action":"attr","Package":"p","Test":"TestA/mlx5_0/1_B","Key":"case","Value":"1 B"}
{"Action":"attr","Package":"p","Test":"TestA/mlx5_0/2_B","Key":"case","Value":"2 B"}
{"Action":"pass","Package":"p","Test":"TestA/mlx5_0/1_B"}
{"Action":"fail","Package":"p","Test":"TestA/mlx5_0/2_B"}
{"Action":"fail","Package":"p","Test":"TestA/mlx5_0"}
{"Action":"fail","Package":"p","Test":"TestA"}
{"Action":"attr","Package":"p","Test":"TestB/rxe0","Key":"judge","Value":"a server"}
{"Action":"output","Package":"p","Test":"TestB/rxe0","Output":"    b_test.go:1: no program\n"}
{"Action":"skip","Package":"p","Test":"TestB/rxe0"}
{"Action":"pass","Package":"p","Test":"TestB"}
{"Action":"attr","Package":"p","Test":"TestC/rxe0","Key":"judge","Value":"another"}
{"Action":"fail","Package":"p","Test":"TestC/rxe0"}
{"Action":"attr","Package":"p","Test":"TestD/rxe0","Key":"judge","Value":"one that died"}
`))
	if err != nil {
		t.Fatal(err)
	}
	const want = `| judge | way | device | cases | result |
|---|---|---|---|---|
| a client | puts | rxe0 | 1 B, 2 B | passed |
| a client | puts | mlx5_0 | 1 B, 2 B | **failed: 2 B** |
| a server |  |  |  | not run: no program |
| another |  |  |  | **failed** |
| one that died |  |  |  | **not run** |
`
	if out.String() != want {
		t.Errorf("got\n%s\nwant\n%s", out, want)
	}
	if want := "p/TestA/mlx5_0/2_B p/TestA/mlx5_0 p/TestA p/TestC/rxe0"; strings.Join(out.failed, " ") != want {
		t.Errorf("failed are %v, want %s", out.failed, want)
	}
	if err := newTable().read(strings.NewReader(`{"Action":"start"}`)); err == nil {
		t.Error("a run without tests has a table")
	}
}
