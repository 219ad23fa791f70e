//go:build linux

package main

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"syscall"

	"github.com/creack/pty"
	"golang.org/x/sys/unix"
	"golang.org/x/term"
)

// shell makes the configuration for a program on the terminal, by default the user's shell.
func shell(c *config, args []string) ([]string, error) {
	if !term.IsTerminal(int(os.Stdin.Fd())) {
		return nil, errors.New("shell: stdin is not a terminal")
	}
	if c.host {
		return nil, errors.New("shell: not with --host")
	}
	c.terminal = true
	if len(args) == 0 {
		args = []string{cmp.Or(os.Getenv("SHELL"), "/bin/sh")}
		os.Setenv("PS1", "rdmalab "+c.kernel+`:\w\$ `)
	}
	return args, nil
}

// resizeFrame marks a frame of stdin that has the terminal's numbers of rows and columns.
const resizeFrame = 0xffff

// rawTerminal passes keys to the guest as they are pressed, and sizes of the terminal.
func rawTerminal(std *stdio) (restore func(), err error) {
	fd := int(os.Stdin.Fd())
	state, err := term.MakeRaw(fd)
	if err != nil {
		return nil, fmt.Errorf("terminal: %w", err)
	}
	resized := make(chan os.Signal, 1)
	signal.Notify(resized, unix.SIGWINCH)
	std.started = func(port net.Conn) {
		for ; ; <-resized {
			if cols, rows, err := term.GetSize(fd); err == nil {
				port.Write([]byte{resizeFrame >> 8, resizeFrame & 0xff, byte(rows >> 8), byte(rows), byte(cols >> 8), byte(cols)})
			}
		}
	}
	return func() { term.Restore(fd, state) }, nil
}

// terminal is the guest's terminal.
type terminal struct{ *os.File }

// Close is called at the end of stdin, which a terminal does not have.
func (terminal) Close() error { return nil }

func (t terminal) resize(rows, cols uint16) {
	pty.Setsize(t.File, &pty.Winsize{Rows: rows, Cols: cols})
}

// startOnTerminal starts a program on a new terminal.
func startOnTerminal(cmd *exec.Cmd, in io.Reader, out io.Writer) (status syscall.WaitStatus, err error) {
	master, err := pty.Start(cmd)
	if err != nil {
		return status, err
	}
	defer master.Close()
	go receive(terminal{master}, in)
	copied := make(chan bool)
	go func() {
		io.Copy(out, master) // until no process has the terminal
		close(copied)
	}()
	if status, err = reap(cmd.Process.Pid); err == nil {
		<-copied
	}
	return status, err
}
