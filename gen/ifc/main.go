// Command ifc writes package lab/connectx/internal/ifc, the layouts of mlx5's firmware interface,
// as Go constants:
//
//	linux-headers ─► mlx5_ifc.h  structures, one C "byte" for each bit ─► zifc.go
//	                 device.h, qp.h  enumerations                      ─┘
//
// A structure's fields become constants that hold a place, named after both in camel case:
// cqn_snd of struct mlx5_ifc_qpc_bits is QpcCqnSnd. Those that the adapter names are written, so
// run it after naming a new one. The package version is pinned (see lists.go), so the output is
// the same on every machine. With -check nothing is written, and a difference is an error; when the
// mirror has the pinned version no more, the constants are compared with those of the newest.
package main

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"go/ast"
	"go/format"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"

	"github.com/goverbs/verbs/lab/debian"
)

const (
	outFile = "zifc.go"
	users   = "../.." // the adapter, from the package of layouts
)

func main() {
	out := flag.String("out", ".", "folder to write to")
	check := flag.Bool("check", false, "write nothing; fail if the file in -out differs")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, *out, *check); err != nil {
		fmt.Fprintln(os.Stderr, "ifc:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, out string, check bool) error {
	root, pkg, err := fetchHeaders(ctx, debian.Archive{Suite: headersSuite, Log: os.Stderr})
	if err != nil {
		return err
	}
	dir := filepath.Join(root, "usr/src", pkg.Name, "include/linux/mlx5")
	var texts []string
	for _, name := range headers {
		b, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			return err
		}
		texts = append(texts, string(b))
	}
	used, err := identifiers(filepath.Join(out, users))
	if err != nil {
		return err
	}
	src, err := generate(strings.Join(texts, "\n"), used)
	if err != nil {
		return err
	}
	file := filepath.Join(out, outFile)
	pinned := pkg.Version == headersVersion
	switch {
	case !check && pinned:
		return os.WriteFile(file, src, 0o644)
	case !check:
		return fmt.Errorf("%s %s is gone from the mirror: pin %s %s in gen/ifc/lists.go to regenerate", headersPackage, headersVersion, pkg.Name, pkg.Version)
	}
	old, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	if !pinned {
		fmt.Fprintf(os.Stderr, "ifc: %s %s is gone from the mirror; comparing with %s %s\n", headersPackage, headersVersion, pkg.Name, pkg.Version)
		return checkCompatible(string(old), string(src))
	}
	if !bytes.Equal(old, src) {
		return fmt.Errorf("%s differs from what the headers give; run go generate ./lab/connectx/internal/ifc", file)
	}
	return nil
}

// fetchHeaders returns the folder of the pinned package and the package, or of the newest one if that is gone.
func fetchHeaders(ctx context.Context, a debian.Archive) (root string, p debian.Package, err error) {
	p = debian.Package{Name: headersPackage, Version: headersVersion}
	if root, err = a.Unpack(ctx, p); !errors.Is(err, debian.ErrNotFound) {
		return root, p, err
	}
	deps, err := a.Depends(ctx, "linux-headers-amd64")
	if err != nil {
		return "", p, err
	}
	i := slices.IndexFunc(deps, func(d string) bool { return strings.HasPrefix(d, "linux-headers-") })
	if i < 0 {
		return "", p, fmt.Errorf("linux-headers-amd64 needs no headers, but %q", deps)
	}
	if p, err = a.Find(ctx, strings.TrimSuffix(deps[i], "-amd64")+"-common"); err == nil {
		root, err = a.Unpack(ctx, p)
	}
	return root, p, err
}

// checkCompatible reports constants of the old source that are missing or different in the new one.
func checkCompatible(old, new string) error {
	constants := func(src string) map[string]string {
		m := map[string]string{}
		for line := range strings.Lines(src) {
			if name, value, ok := strings.Cut(line, " = "); ok && line[0] == '\t' {
				m[strings.Join(strings.Fields(name), " ")] = strings.TrimSpace(value)
			}
		}
		return m
	}
	now := constants(new)
	var errs []error
	for name, value := range constants(old) {
		if v, ok := now[name]; !ok {
			errs = append(errs, fmt.Errorf("%s: removed", name))
		} else if v != value {
			errs = append(errs, fmt.Errorf("%s: was %s, is %s", name, value, v))
		}
	}
	return errors.Join(errs...)
}

// identifiers returns the identifiers in the files of a folder and below, without the generated one.
func identifiers(dir string) (map[string]bool, error) {
	used := map[string]bool{}
	err := filepath.WalkDir(dir, func(name string, d fs.DirEntry, err error) error {
		if err != nil || filepath.Ext(name) != ".go" || d.Name() == outFile {
			return err
		}
		f, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		ast.Inspect(f, func(n ast.Node) bool {
			if n, ok := n.(*ast.Ident); ok {
				used[n.Name] = true
			}
			return true
		})
		return nil
	})
	return used, err
}

func generate(text string, used map[string]bool) ([]byte, error) {
	h := newHeader(text, used)
	var b bytes.Buffer
	fmt.Fprintf(&b, "// Code generated by go generate ./lab/connectx/internal/ifc from Debian's %s %s. DO NOT EDIT.\n// SPDX-License-Identifier: MIT AND Linux-OpenIB\n\n//go:build linux\n\n", headersPackage, headersVersion)
	for _, n := range notices(text) {
		fmt.Fprintf(&b, "%s\n\n", n)
	}
	b.WriteString("package ifc\n\nconst (")
	for _, prefix := range enums {
		if err := h.writeEnum(&b, prefix); err != nil {
			return nil, err
		}
	}
	for _, name := range h.names {
		if err := h.writeStruct(&b, name); err != nil {
			return nil, err
		}
	}
	fmt.Fprintf(&b, ")\n\nvar %sReserved = %s\n\n", camel(withReserved), runs(h.reserved(withReserved, 0)))
	if err := h.writeCommands(&b); err != nil {
		return nil, err
	}
	return format.Source(b.Bytes())
}
