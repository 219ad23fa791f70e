package main

import (
	"strings"
	"testing"
)

const rows = "6.12\tTestKill\tkilled\tverbs\trxe\t`EIO`\t5 ms\t1 s\n" +
	"6.12\tTestCut\tcut\tverbs\trxe\tcontinues\t2 s\t\n" +
	"6.12\tTestKill\tkilled\tmsg\tsiw\t`EPIPE`\t6 ms\t2 s\n" +
	"6.12\tTestKill\tkilled\tverbs\tsiw\t`EPIPE`\t7 ms\t3 s\n"

func TestMarkdown(t *testing.T) {
	got, err := markdown(rows)
	const head = "| | rxe | after | again | siw | after | again |\n|---|---|---|---|---|---|---|\n"
	want := "On Linux 6.12.\n" +
		"\n**killed** (`make faults RUN=TestKill`)\n\n" + head +
		"| verbs | `EIO` | 5 ms | 1 s | `EPIPE` | 7 ms | 3 s |\n" +
		"| msg |  |  |  | `EPIPE` | 6 ms | 2 s |\n" +
		"\n**cut** (`make faults RUN=TestCut`)\n\n" + head +
		"| verbs | continues | 2 s |  |  |  |  |\n"
	if err != nil || got != want {
		t.Errorf("%v: %s\nwant %s", err, got, want)
	}
	for _, bad := range []string{"", "too\tfew\n", rows + strings.SplitAfter(rows, "\n")[0], rows + strings.Replace(rows, "6.12", "7.2", 1)} {
		if got, err := markdown(bad); err == nil {
			t.Errorf("%q gives %q", bad, got)
		}
	}
}
