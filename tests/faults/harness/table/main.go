// Command table writes the part of docs/reliability.md about faults on one host, from the
// rows that tests/faults/harness wrote to the file named by FAULTS_TABLE; make faults runs
// both.
package main

import (
	"errors"
	"fmt"
	"strings"

	"github.com/goverbs/verbs/tests/docs/part"
)

func main() { part.Main("make faults", markdown) }

// row is a result of the harness: for a kernel, a test with a title, a layer and a driver,
// it holds what the program saw, how long that took, and how long until it worked again.
type row struct{ kernel, test, title, layer, driver, saw, took, again string }

// key identifies a line of the tables.
type key struct{ test, title, layer string }

// markdown returns a table for each title, in the order of the rows, with both drivers side
// by side.
func markdown(text string) (string, error) {
	var order []key
	rows := map[key]map[string]row{}
	kernel := ""
	for line := range strings.Lines(text) {
		f := strings.Split(strings.TrimSuffix(line, "\n"), "\t")
		if len(f) != 8 {
			return "", fmt.Errorf("%q is no row", line)
		}
		r := row{f[0], f[1], f[2], f[3], f[4], f[5], f[6], f[7]}
		if kernel == "" {
			kernel = r.kernel
		}
		k := key{r.test, r.title, r.layer}
		if rows[k] == nil {
			rows[k] = map[string]row{}
			order = append(order, k)
		}
		if _, ok := rows[k][r.driver]; ok || r.kernel != kernel {
			return "", fmt.Errorf("%q comes twice, or is of another kernel", line)
		}
		rows[k][r.driver] = r
	}
	if len(order) == 0 {
		return "", errors.New("no rows")
	}
	var b strings.Builder
	fmt.Fprintf(&b, "On Linux %s.\n", kernel)
	done := map[key]bool{}
	for _, first := range order {
		head := key{first.test, first.title, ""}
		if done[head] {
			continue
		}
		done[head] = true
		fmt.Fprintf(&b, "\n**%s** (`make faults RUN=%s`)\n\n", first.title, first.test)
		b.WriteString("| | rxe | after | again | siw | after | again |\n|---|---|---|---|---|---|---|\n")
		for _, k := range order {
			if k.test == first.test && k.title == first.title {
				rxe, siw := rows[k]["rxe"], rows[k]["siw"]
				b.WriteString("| " + strings.Join([]string{k.layer, rxe.saw, rxe.took, rxe.again, siw.saw, siw.took, siw.again}, " | ") + " |\n")
			}
		}
	}
	return b.String(), nil
}
