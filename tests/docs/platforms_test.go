package docs

import (
	"os"
	"strings"
	"testing"

	load "golang.org/x/tools/go/packages"
)

// TestPlatforms checks the types of all packages, and of their tests, on the platforms that
// docs/kernels.md names. To compile them takes twenty times as long.
func TestPlatforms(t *testing.T) {
	onHost(t)
	for _, row := range table(t, "../../docs/kernels.md", "platform", "state")[1:] { // the first is tested
		for platform := range strings.SplitSeq(row[0], ", ") {
			goos, goarch, ok := strings.Cut(platform, "/")
			if !ok {
				t.Fatalf("%q is no platform", platform)
			}
			names := "./..."
			rootOnly := goos == "plan9"
			if rootOnly {
				names = "."
			}
			t.Run(platform, func(t *testing.T) {
				pkgs, err := load.Load(&load.Config{
					Mode: load.NeedName | load.NeedFiles | load.NeedCompiledGoFiles | load.NeedImports | load.NeedDeps |
						load.NeedTypes | load.NeedTypesSizes | load.NeedTypesInfo | load.NeedSyntax,
					Dir: "../..", Tests: !rootOnly,
					Env: append(os.Environ(), "GOWORK=off", "CGO_ENABLED=0", "GOOS="+goos, "GOARCH="+goarch),
				}, names)
				if err != nil {
					t.Fatal(err)
				}
				load.Visit(pkgs, nil, func(p *load.Package) {
					for _, err := range p.Errors {
						t.Error(err)
					}
				})
			})
		}
	}
}
