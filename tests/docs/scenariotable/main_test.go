package main

import (
	"strings"
	"testing"
)

// results returns the results of a scenario on all kernels and devices.
func results(name string, result func(kernel, device string) string) string {
	var b strings.Builder
	for _, k := range []string{"6.1.0-32-amd64", "6.12.117+deb13-amd64", "7.3"} {
		for _, d := range []string{"rxe0", "siw0"} {
			b.WriteString(strings.Join([]string{name, k, d, result(k, d)}, "\t") + "\n")
		}
	}
	return b.String()
}

func always(r string) func(string, string) string { return func(string, string) string { return r } }

func TestMarkdown(t *testing.T) {
	onSIW := func(_, device string) string {
		if device == "siw0" {
			return "ENOTSUP"
		}
		return "ok"
	}
	got, err := markdown(results("b/x", onSIW) + results("a/x", always("refused")))
	const want = `| name | 6.1 rxe | 6.1 siw | 6.12 rxe | 6.12 siw | 7.3 rxe | 7.3 siw |
|---|---|---|---|---|---|---|
| a/x | refused | refused | refused | refused | refused | refused |
| b/x | ok | EOPNOTSUPP | ok | EOPNOTSUPP | ok | EOPNOTSUPP |
`
	if err != nil || got != want {
		t.Errorf("%v\n%s", err, got)
	}
}

func TestBadResults(t *testing.T) {
	good := results("a/x", always("ok"))
	for name, bad := range map[string]string{
		"none":           "",
		"a line cut off": good + "a/y\t6.1",
		"failed":         results("a/x", always("failed")),
		"one missing":    good[:strings.LastIndex(strings.TrimSuffix(good, "\n"), "\n")+1],
		"contradictory":  good + results("a/x", always("refused")),
		"other kernel":   good + "a/x\t6.5.0\trxe0\tok\n",
	} {
		if got, err := markdown(bad); err == nil {
			t.Errorf("%s: no error, but\n%s", name, got)
		}
	}
}

func TestInsert(t *testing.T) {
	table := "| name | a | b |\n|---|---|---|\n| x | ok | refused |\n| y | refused | EINVAL |\n"
	const begin, end = "<!-- written by make tables -->\n", "<!-- end -->\n"
	got, err := insert("before\n"+begin+"old\n"+end+"after\n", table)
	const want = "before\n" + begin + "| name | a | b |\n|---|---|---|\n| x | yes | |\n" + end + "after\n"
	if err != nil || got != want {
		t.Errorf("%v\n%s", err, got)
	}
	if _, err := insert("nothing", table); err == nil {
		t.Error("a page without a place for it")
	}
}
