// Command mkpeers builds programs of others that move objects by RDMA into a folder: cuobjtest and
// vgwrdma, from the module of versitygw. It needs g++ and the headers of libibverbs and libmlx5.
//
// The programs are what the module has, with two additions to vgwrdma, which testdata describes:
// verbs.c, without which it finds no libibverbs, and cuobjserver.c in place of NVIDIA's closed
// library. Program hostclient is testdata's, on a package of the module.
package main

import (
	"context"
	"embed"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"strings"
)

// The module that has the programs, and the checksum of its files.
const (
	module = "github.com/versity/versitygw@v1.8.0"
	sum    = "h1:au+wI+aybno/STsQiSm35Uu6Q6iK5MWReQxgO6SEMFc="
)

//go:embed testdata
var testdata embed.FS

// archive is a library that a package of the module links to, and expects in the folder rdma.
type archive struct {
	name    string
	flags   []string
	sources []string // patterns
}

var archives = []archive{
	{"libhostclientwrapper.a", nil, []string{"cuwrapper/rdma_host_client_wrapper.cpp"}},
	{"librcserver.a", []string{"-Icuwrapper/rc"}, []string{"cuwrapper/rc/*.cpp", "testdata/verbs.c"}},
	{"libcuobjwrapper.a", []string{"-Icuwrapper"}, []string{"testdata/cuobjserver.c"}},
	{"libcuobjserver.a", nil, nil}, // what the wrapper would call
}

// programs are built in this order: the Makefile takes the last as the sign that all are there.
var programs = []struct{ folder, name, flag string }{
	{"cmd", "cuobjtest", "-tags=cuobjclient_host"},
	{"testdata", "hostclient", "-tags=cuobjclient_host"},
	{"cmd", "vgwrdma", "-ldflags=-extldflags=-Wl,--wrap=dlsym"},
}

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: mkpeers FOLDER")
		os.Exit(2)
	}
	if err := build(context.Background(), os.Args[1]); err != nil {
		fmt.Fprintln(os.Stderr, "mkpeers:", err)
		os.Exit(1)
	}
}

func build(ctx context.Context, folder string) error {
	folder, err := filepath.Abs(folder)
	if err != nil {
		return err
	}
	source := filepath.Join(folder, "source")
	if err := fetch(ctx, source); err != nil {
		return err
	}
	if err := os.CopyFS(source, testdata); err != nil {
		return err
	}
	for _, a := range archives {
		if err := a.make(ctx, source); err != nil {
			return fmt.Errorf("%s: %w", a.name, err)
		}
	}
	for _, p := range programs {
		if err := run(ctx, source, "go", "build", "-buildvcs=false", "-o", filepath.Join(folder, p.name), p.flag, "./"+path.Join(p.folder, p.name)); err != nil {
			return err
		}
	}
	return os.RemoveAll(source)
}

// fetch copies the module's files to a folder.
func fetch(ctx context.Context, folder string) error {
	if err := os.RemoveAll(folder); err != nil {
		return err
	}
	if err := os.MkdirAll(folder, 0o777); err != nil {
		return err
	}
	cmd := command(ctx, folder, "go", "mod", "download", "-json", module)
	cmd.Stdout = nil
	out, err := cmd.Output()
	var m struct{ Dir, Sum, Error string }
	if jsonErr := json.Unmarshal(out, &m); jsonErr != nil || m.Error != "" {
		return fmt.Errorf("download %s: %v: %s", module, err, m.Error)
	}
	if m.Sum != sum {
		return fmt.Errorf("download %s: its checksum is %s, want %s", module, m.Sum, sum)
	}
	return os.CopyFS(folder, os.DirFS(m.Dir))
}

// make compiles the sources into the folder rdma.
func (a archive) make(ctx context.Context, source string) error {
	args := []string{"rcs", filepath.Join("rdma", a.name)}
	for _, pattern := range a.sources {
		files, err := filepath.Glob(filepath.Join(source, pattern))
		if err != nil || len(files) == 0 {
			return fmt.Errorf("no file is %s: %v", pattern, err)
		}
		for _, file := range files {
			compiler := "gcc"
			if strings.HasSuffix(file, ".cpp") {
				compiler = "g++"
			}
			object := filepath.Base(file) + ".o"
			if err := run(ctx, source, compiler, append([]string{"-O2", "-fPIC", "-c", "-o", object, file}, a.flags...)...); err != nil {
				return err
			}
			args = append(args, object)
		}
	}
	return run(ctx, source, "ar", args...)
}

func run(ctx context.Context, dir, name string, args ...string) error {
	cmd := command(ctx, dir, name, args...)
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("%s: %w", strings.Join(cmd.Args, " "), err)
	}
	return nil
}

// command returns a command that knows nothing of the checkout around its folder.
func command(ctx context.Context, dir, name string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir, cmd.Env = dir, append(os.Environ(), "GOWORK=off", "GOFLAGS=", "GOOS=", "GOARCH=", "CGO_ENABLED=1")
	cmd.Stdout, cmd.Stderr = os.Stderr, os.Stderr
	return cmd
}
