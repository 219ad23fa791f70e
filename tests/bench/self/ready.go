package self

import (
	"fmt"
	"io"
	"os"
)

// Ready tells who started a server that it serves, and has end called when
// nobody wants it any more: at the end of the standard input.
func Ready(end func()) {
	fmt.Println("ready")
	go func() {
		io.Copy(io.Discard, os.Stdin)
		end()
	}()
}
