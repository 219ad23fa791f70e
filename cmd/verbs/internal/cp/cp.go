// Package cp implements verbs cp, which copies files over package rsock.
package cp

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/goverbs/verbs/cmd/verbs/internal/cli"
)

// Cmd is verbs cp, for kong. Names have the syntax of scp.
type Cmd struct {
	Paths    []string      `arg:"" optional:"" placeholder:"FILE|HOST:[PORT:]NAME" help:"What to copy, one or more, and where to. A HOST: makes it the server's; the directory served is where its names begin."`
	Serve    string        `short:"l" placeholder:"DIR" help:"Serve the files of a directory, to be read and written by all who connect."`
	Listen   string        `default:":7471" placeholder:"ADDR" help:"Where to serve, with -l."`
	ReadOnly bool          `help:"Serve files to be read only."`
	Port     int           `short:"P" default:"7471" help:"Port of servers that are named without one."`
	Retry    time.Duration `default:"1m" help:"How long to try again when a connection breaks and nothing gets through."`
	Quiet    bool          `short:"q" help:"Show no progress."`
	Progress bool          `help:"Show progress even where it is not seen at once."`
}

func (c *Cmd) Help() string {
	return `A file appears when it is complete and its SHA-256 is verified. Data received
before a connection broke is stored as .NAME.part, and the copy resumes from there:
immediately, or when the same command is run again. There is neither encryption nor
authentication.

Examples:

  verbs cp -l /srv/files                     serve the files in a directory
  verbs cp --read-only -l .                  serve them to be read only
  verbs cp disk.img 10.9.0.1:                copy a file to a server
  verbs cp 10.9.0.1:disk.img 10.9.0.1:a .    copy files from a server
  verbs cp 10.9.0.1:7472:disk.img copy.img   from a server at another port`
}

func (c *Cmd) Run(ctx context.Context) error {
	if c.Serve != "" {
		if len(c.Paths) > 0 {
			return cli.Usage(errors.New("-l takes no files to copy"))
		}
		return c.serve(ctx)
	}
	if len(c.Paths) < 2 {
		return cli.Usage(errors.New("want files and a destination, or -l DIR"))
	}
	to := c.Paths[len(c.Paths)-1]
	for _, from := range c.Paths[:len(c.Paths)-1] {
		t, err := c.plan(from, to, len(c.Paths) > 2)
		if err == nil {
			err = c.copy(ctx, t)
		}
		if err != nil {
			return fmt.Errorf("copy %s to %s: %w", from, to, err)
		}
	}
	return nil
}

// transfer is one file to copy.
type transfer struct {
	addr   string // of the server
	remote string // its name there
	dir    string // the local directory,
	local  string // and the name in it
	put    bool
}

// plan returns the transfer of one file, or of one of several.
func (c *Cmd) plan(from, to string, multiple bool) (t transfer, err error) {
	src, dst := c.locate(from), c.locate(to)
	switch {
	case src.host == "" && dst.host == "":
		return t, errors.New("one side must be a server's: HOST:NAME")
	case src.host != "" && dst.host != "":
		return t, errors.New("only one side can be a server's")
	case dst.host != "":
		t = transfer{addr: dst.host, remote: dst.name, put: true}
		t.dir, t.local = filepath.Split(src.name)
		if t.remote == "" || strings.HasSuffix(t.remote, "/") || multiple {
			t.remote = path.Join(t.remote, t.local)
		}
	default:
		t = transfer{addr: src.host, remote: src.name}
		t.dir, t.local = filepath.Split(dst.name)
		if info, err := os.Stat(dst.name); err == nil && info.IsDir() {
			t.dir, t.local = dst.name, path.Base(t.remote)
		} else if multiple {
			return t, fmt.Errorf("%s: %w", to, errNotDir)
		}
	}
	if t.dir == "" {
		t.dir = "."
	}
	if err := checkName(t.remote); err != nil {
		return t, err
	}
	return t, checkName(t.local)
}

var errNotDir = errors.New("not a directory, and there are several files")

type location struct{ host, name string }

// locate parses "HOST:NAME" and "HOST:PORT:NAME". As with scp, a colon after a slash does
// not end a host, and IPv6 addresses are in brackets.
func (c *Cmd) locate(s string) location {
	from := 0
	if strings.HasPrefix(s, "[") {
		from = max(0, strings.Index(s, "]"))
	}
	i := strings.Index(s[from:], ":")
	if i <= 0 && from == 0 || i < 0 || strings.Contains(s[:from+i], "/") {
		return location{"", s}
	}
	host, name := strings.Trim(s[:from+i], "[]"), s[from+i+1:]
	if strings.ContainsAny(host, "[]") {
		return location{"", s}
	}
	port := strconv.Itoa(c.Port)
	if p, rest, ok := strings.Cut(name, ":"); ok {
		if _, err := strconv.ParseUint(p, 10, 16); err == nil {
			port, name = p, rest
		}
	}
	return location{net.JoinHostPort(host, port), name}
}

// checkName rejects names that lead out of a directory, and names of files that are still
// being received. os.Root rejects symbolic links that lead out.
func checkName(name string) error {
	switch {
	case name == "" || !filepath.IsLocal(name) || strings.HasSuffix(name, "/") || name == ".":
		return pathError(name, "not the name of a file in the directory served")
	case len(path.Base(name)) > 240:
		return pathError(name, "name is too long")
	case isPart(name):
		return pathError(name, "name of a file that is being received")
	}
	return nil
}

// partName returns the name of a file until the file is complete.
func partName(name string) string {
	dir, base := path.Split(name)
	return dir + "." + base + ".part"
}

func isPart(name string) bool {
	base := path.Base(name)
	return strings.HasPrefix(base, ".") && strings.HasSuffix(base, ".part")
}
