// Package self has what the programs here share.
package self

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"os"
	"strconv"
	"strings"
	"time"

	_ "github.com/goverbs/verbs/soft" // the programs run on VERBS_SOFT as well
)

// Main runs a program: a server with the arguments -s ADDR PORT, or a client with ADDR PORT and as
// many more as words names.
func Main(name, words string, serve func(addr string) error, client func(addr string, args []string) error) {
	log.SetFlags(0)
	log.SetPrefix(name + ": ")
	args := os.Args[1:]
	var err error
	switch {
	case len(args) == 3 && args[0] == "-s":
		err = serve(net.JoinHostPort(args[1], args[2]))
	case len(args) == 2+len(strings.Fields(words)):
		err = client(net.JoinHostPort(args[0], args[1]), args[2:])
	default:
		err = fmt.Errorf("usage: %s -s ADDR PORT | ADDR PORT %s", name, words)
	}
	if err != nil {
		log.Fatal(err)
	}
}

// Numbers parses arguments.
func Numbers[T int | uint32 | uint64](args []string, to ...*T) error {
	for i, p := range to {
		n, err := strconv.ParseUint(args[i], 10, 31)
		if err != nil {
			return err
		}
		*p = T(n)
	}
	return nil
}

// Took prints the times of single operations.
func Took(out io.Writer, all []time.Duration) {
	fmt.Fprint(out, "took")
	for _, t := range all {
		fmt.Fprintf(out, " %d", t)
	}
	fmt.Fprintln(out)
}

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
