package main

import (
	"strings"
	"testing"
)

const rows = "TestA\tlost\tcm\trxe\t6.1.0-9 7.2.1+x\tright\t1.0\n" +
	"TestA\tlost\tmsg\trxe\t6.1.0-9 7.2.1+x\tended\t2.0\n" +
	"TestB\tserved\tcm\tsiw\t6.1.0-9 7.2.1+x\tright\t3.0\n" +
	"TestA\tlost\tconn\trxe\t6.1.0-9 7.2.1+x\tright\t4.0\n" +
	"TestA\tlost\tcm\trxe\t6.12.1 6.1.0-9\tright\t5.0\n"

func TestMarkdown(t *testing.T) {
	got, err := markdown(rows)
	const head = "| | rxe, 6.1 and 7.2 | rxe, 6.12 and 6.1 | siw, 6.1 and 7.2 |\n|---|---|---|---|\n"
	want := "**TestA**: results, and the seconds until then\n\n" + head +
		"| lost | right: cm 1.0, conn 4.0; ended: msg 2.0 | right: cm 5.0 | |\n" +
		"\n**TestB**: results, and the seconds until then\n\n" + head +
		"| served | | | right: cm 3.0 |\n\n"
	if err != nil || got != want {
		t.Errorf("%v: %s\nwant %s", err, got, want)
	}
	for _, bad := range []string{"", "too\tfew\n", strings.ReplaceAll(rows, "6.1.0-9 ", "")} {
		if got, err := markdown(bad); err == nil {
			t.Errorf("%q gives %q", bad, got)
		}
	}
}
