package self

import (
	"bufio"
	"fmt"
	"io"
	"os"
)

// Ready prints that a server is ready, and calls end at the end of the standard
// input.
func Ready(end func()) {
	fmt.Println("ready")
	go func() {
		io.Copy(io.Discard, os.Stdin)
		end()
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
