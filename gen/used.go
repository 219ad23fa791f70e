package main

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"
)

const packagePath = "github.com/goverbs/verbs/abi"

// usedNames returns the names of package abi that Go files below root mention, and, with a point
// before them, the names of the methods without arguments that these files call. The files need not
// compile: code that uses a new name is written first, and the name generated then.
func usedNames(root string) (map[string]bool, error) {
	used := map[string]bool{}
	return used, filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && path == filepath.Join(root, "build"): // other checkouts, among others
			return fs.SkipDir
		case d.IsDir() || filepath.Ext(path) != ".go":
			return nil
		}
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		if !slices.ContainsFunc(file.Imports, func(i *ast.ImportSpec) bool { return strings.Trim(i.Path.Value, `"`) == packagePath }) {
			return nil
		}
		ast.Inspect(file, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.SelectorExpr:
				if x, ok := n.X.(*ast.Ident); ok && x.Name == "abi" {
					used[n.Sel.Name] = true
				}
			case *ast.CallExpr:
				if s, ok := n.Fun.(*ast.SelectorExpr); ok && len(n.Args) == 0 {
					used["."+s.Sel.Name] = true
				}
			}
			return true
		})
		return nil
	})
}
