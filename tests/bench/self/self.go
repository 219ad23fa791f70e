// Package self has what the programs here share.
package self

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"

	_ "github.com/goverbs/verbs/soft" // the programs run on VERBS_SOFT as well
)

// Ready prints that a server is ready. The process exits at the end of its standard input.
func Ready() {
	fmt.Println("ready")
	go func() {
		io.Copy(io.Discard, os.Stdin)
		os.Exit(0)
	}()
}

// Again calls measure for each line of the standard input, which requests one more
// measurement. It prints an empty line after the output of measure.
func Again(measure func(out *bufio.Writer) error) error {
	out := bufio.NewWriter(os.Stdout)
	for orders := bufio.NewScanner(os.Stdin); orders.Scan(); {
		if err := measure(out); err != nil {
			return err
		}
		fmt.Fprintln(out)
		if err := out.Flush(); err != nil {
			return err
		}
	}
	return nil
}

// Resident returns the process's resident memory in KiB.
func Resident() (int, error) {
	text, err := os.ReadFile("/proc/self/smaps_rollup")
	for line := range strings.Lines(string(text)) {
		if rest, ok := strings.CutPrefix(line, "Rss:"); ok {
			return strconv.Atoi(strings.TrimSuffix(strings.TrimSpace(rest), " kB"))
		}
	}
	return 0, errors.Join(err, errors.New("smaps_rollup has no Rss"))
}
