// Command typecheck checks the types of packages and of their tests on other systems:
//
//	typecheck "darwin/arm64 windows/amd64" ./cm ./rsock
//
// It reads the sources of what they import, where go vet has the compiler make export data: a platform takes seconds,
// not a minute and a half of processor time with an empty cache. make lint runs it, and make lint ALL=1 go vet.
package main

import (
	"fmt"
	"os"
	"strings"

	"golang.org/x/tools/go/packages"
)

func main() {
	if len(os.Args) < 3 {
		fmt.Fprintln(os.Stderr, `usage: typecheck "OS/ARCH ..." PACKAGE ...`)
		os.Exit(2)
	}
	failed := false
	for platform := range strings.FieldsSeq(os.Args[1]) {
		n, errs := check(platform, os.Args[2:])
		for _, err := range errs {
			fmt.Fprintf(os.Stderr, "%s: %v\n", platform, err)
		}
		fmt.Printf("%s: %d packages\n", platform, n)
		failed = failed || len(errs) > 0
	}
	if failed {
		os.Exit(1)
	}
}

// check returns the number of packages, with those of tests, and what is wrong with them and what they import.
func check(platform string, patterns []string) (n int, errs []error) {
	system, arch, ok := strings.Cut(platform, "/")
	if !ok {
		return 0, []error{fmt.Errorf("%q is not OS/ARCH", platform)}
	}
	pkgs, err := packages.Load(&packages.Config{
		Mode:  packages.NeedName | packages.NeedFiles | packages.NeedCompiledGoFiles | packages.NeedImports | packages.NeedDeps | packages.NeedTypes | packages.NeedTypesSizes,
		Env:   append(os.Environ(), "GOOS="+system, "GOARCH="+arch, "CGO_ENABLED=0"),
		Tests: true,
	}, patterns...)
	if err != nil {
		return 0, []error{err}
	}
	packages.Visit(pkgs, nil, func(p *packages.Package) {
		for _, err := range p.Errors {
			errs = append(errs, err)
		}
	})
	return len(pkgs), errs
}
