// Command gen writes package abi: what this repository uses of the kernel's RDMA uAPI, as Go.
//
//	linux-libc-dev ─► clang -target bpf -g ─► BTF ─► structs, unions  ─┐
//	(lab/debian)  clang -E -dM ─► values ────► macros, enums     ─┴► abi/zabi_*.go
//
// It writes the constants and types that Go files of the repository name, the types inside those, and
// the methods that they call. To use another one, name it in the code, then run go generate ./abi.
//
// The package version is pinned (see headers.go), so the output is the same on every
// machine. With -check nothing is written, and a difference is an error. If a mirror no
// longer has the pinned version, the newest one is compared instead, and only a removed
// or moved item is an error.
package main

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"iter"
	"maps"
	"os"
	"os/signal"
	"path/filepath"
	"strings"

	"github.com/goverbs/verbs/lab/debian"
)

func main() {
	out := flag.String("out", ".", "folder to write to")
	check := flag.Bool("check", false, "write nothing; fail if the files in -out differ")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, *out, *check); err != nil {
		fmt.Fprintln(os.Stderr, "gen:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, out string, check bool) error {
	root, version, err := fetchHeaders(ctx, debian.Archive{Suite: headersSuite, Log: os.Stderr})
	if err != nil {
		return err
	}
	h, err := parseHeaders(ctx, root, headers)
	if err != nil {
		return err
	}
	used, err := usedNames(filepath.Join(out, ".."))
	if err != nil {
		return err
	}
	files, err := generate(h, version, func(name string) bool { return used[name] })
	if err != nil {
		return err
	}
	if version != headersVersion {
		fmt.Fprintf(os.Stderr, "gen: %s %s is gone from the mirror; comparing with %s\n", headersPackage, headersVersion, version)
		old, err := os.ReadFile(filepath.Join(out, layoutFile))
		if err != nil {
			return err
		}
		if err := checkCompatible(string(old), string(files[layoutFile])); err != nil || check {
			return err
		}
		return fmt.Errorf("pin %s in gen/headers.go to regenerate", version)
	}
	if check {
		return checkFiles(out, files)
	}
	old, _ := filepath.Glob(filepath.Join(out, "zabi_*"))
	for _, f := range old {
		os.Remove(f)
	}
	for name, text := range files {
		if err := os.WriteFile(filepath.Join(out, name), text, 0o644); err != nil {
			return err
		}
	}
	return nil
}

// checkFiles reports how the files in dir differ from those generated.
func checkFiles(dir string, files map[string][]byte) error {
	var errs []error
	have, err := filepath.Glob(filepath.Join(dir, "zabi_*"))
	if err != nil {
		return err
	}
	for _, f := range have {
		if _, ok := files[filepath.Base(f)]; !ok {
			errs = append(errs, fmt.Errorf("%s is not generated", f))
		}
	}
	for name, text := range files {
		old, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			errs = append(errs, err)
		} else if !bytes.Equal(old, text) {
			errs = append(errs, fmt.Errorf("%s differs from what the headers give and the code uses; run go generate ./abi", name))
		}
	}
	return errors.Join(errs...)
}

// checkCompatible reports items of the old layout that are missing or different in the
// new one. New items are no error.
func checkCompatible(old, new string) error {
	now := maps.Collect(items(new))
	var errs []error
	for item, value := range items(old) {
		switch v, ok := now[item]; {
		case !ok:
			errs = append(errs, fmt.Errorf("%s: removed", item))
		// A struct that grows at its end is how the uAPI evolves.
		case v != value && !strings.HasPrefix(item, "sizeof "):
			errs = append(errs, fmt.Errorf("%s: was %s, is %s", item, value, v))
		}
	}
	return errors.Join(errs...)
}

// items yields the parts of lines such as "offsetof struct x.y = 8 size 4".
func items(layout string) iter.Seq2[string, string] {
	return func(yield func(item, value string) bool) {
		for line := range strings.Lines(layout) {
			if item, value, ok := strings.Cut(strings.TrimSpace(line), " = "); ok && !yield(item, value) {
				return
			}
		}
	}
}
