package self

import (
	"bufio"
	"fmt"
	"io"
	"os"
)

// Ready tells the caller of a server that it serves, and calls end at the end of the
// standard input.
func Ready(end func()) {
	fmt.Println("ready")
	go func() {
		io.Copy(io.Discard, os.Stdin)
		end()
	}()
}

// Again calls measure for each line of the standard input, which orders one more
// measurement. An empty line ends what measure prints.
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
