// Command versitygw makes a copy of versitygw, an S3 gateway, whose program vgwrdma moves objects by
// RDMA without cgo: the packages of this directory take the places of two of its own. rdma is for
// cuObject's protocol, by DC, and rcserver for hipobj-rc-v2, by RC.
//
//	go run ./tests/s3/versitygw DIR     make the copy in DIR, which must not exist, and build DIR/vgwrdma
package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
)

const module = "github.com/versity/versitygw@v1.8.0"

func main() {
	log.SetFlags(0)
	if len(os.Args) != 2 {
		log.Fatal("usage: versitygw DIR")
	}
	dir, err := filepath.Abs(os.Args[1])
	if err == nil {
		err = makeCopy(dir)
	}
	if err == nil {
		err = inCopy(dir, os.Stderr, "build", "-o", "vgwrdma", "./cmd/vgwrdma")
	}
	if err != nil {
		log.Fatal(err)
	}
}

// output runs the go command, and returns what it prints.
func output(args ...string) (string, error) {
	cmd := exec.Command("go", args...)
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		err = fmt.Errorf("%v: %w", cmd, err)
	}
	return strings.TrimSpace(string(out)), err
}

// inCopy runs the go command in a copy, without cgo and without this repository's workspace.
func inCopy(dir string, out io.Writer, args ...string) error {
	cmd := exec.Command("go", args...)
	cmd.Dir, cmd.Stdout, cmd.Stderr = dir, out, out
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOWORK=off", "GOFLAGS=-mod=mod")
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("%v: %w", cmd, err)
	}
	return nil
}

// constraint is that of files which need cgo, or of those which stand in for them.
var constraint = regexp.MustCompile(`(?m)^//go:build (!?)\(?linux && amd64 && cgo\)?$`)

// each calls f with the files of a package.
func each(dir string, f func(name string) error) error {
	names, err := filepath.Glob(filepath.Join(dir, "*.go"))
	for _, name := range names {
		err = errors.Join(err, f(name))
	}
	return err
}

func makeCopy(dir string) error {
	root, err := output("list", "-m", "-f", "{{.Dir}}", "github.com/goverbs/verbs")
	if err != nil {
		return err
	}
	text, err := output("mod", "download", "-json", module)
	if err != nil {
		return err
	}
	var info struct{ Dir string }
	if err := json.Unmarshal([]byte(text), &info); err != nil {
		return err
	}
	if err := os.CopyFS(dir, os.DirFS(info.Dir)); err != nil {
		return err
	}
	for _, pkg := range []string{"rdma/rcroutes", "cubackend"} { // they use what is replaced
		err := each(filepath.Join(dir, pkg), func(name string) error {
			b, err := os.ReadFile(name)
			if err == nil {
				err = os.WriteFile(name, constraint.ReplaceAll(b, []byte("//go:build ${1}linux")), 0o666)
			}
			return err
		})
		if err != nil {
			return err
		}
	}
	for theirs, ours := range map[string]string{"rdma": "rdma", "rdma/rcserver": "rcserver"} {
		theirs = filepath.Join(dir, theirs)
		if err := each(theirs, os.Remove); err != nil {
			return err
		}
		if err := os.CopyFS(theirs, os.DirFS(filepath.Join(root, "tests/s3/versitygw", ours))); err != nil {
			return err
		}
	}
	// With VERBS_SOFT the program has a device on any machine.
	soft := []byte("package main\n\nimport _ \"github.com/goverbs/verbs/soft\"\n")
	if err := os.WriteFile(filepath.Join(dir, "cmd/vgwrdma/soft.go"), soft, 0o666); err != nil {
		return err
	}
	args := []string{"mod", "edit", "-go=1.26.0"}
	for path, sub := range map[string]string{"github.com/goverbs/verbs": "", "github.com/goverbs/verbs/s3rdma": "s3rdma"} {
		args = append(args, "-require="+path+"@v0.1.0", "-replace="+path+"="+filepath.Join(root, sub))
	}
	return inCopy(dir, os.Stderr, args...)
}
