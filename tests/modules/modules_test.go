package modules

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/goverbs/verbs/internal/labtest"
)

// tcpProgram serves gRPC over TCP, and rdmaProgram over package rsock.
const tcpProgram = `package main

import (
	"log"
	"net"

	"golang.org/x/net/netutil"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/emptypb"
)

var _ emptypb.Empty

func main() {
	l, err := net.Listen("tcp", ":7480")
	if err != nil {
		log.Fatal(err)
	}
	log.Fatal(grpc.NewServer().Serve(netutil.LimitListener(l, 10)))
}
`

var rdmaProgram = strings.NewReplacer(`net.Listen("tcp",`, `rsock.Listen("rdma",`, `	"net"
`, `
	"github.com/goverbs/verbs/rsock"`).Replace(tcpProgram)

// goMod is the output of go mod edit -json.
type goMod struct {
	Go, Toolchain string
	Require       []struct{ Path, Version string }
}

func modOf(t *testing.T, dir string) (m goMod, versions map[string]string) {
	t.Helper()
	labtest.Check(t, json.Unmarshal([]byte(run(t, dir, noWorkspaceEnv(), "go", "mod", "edit", "-json")), &m))
	versions = map[string]string{}
	for _, r := range m.Require {
		versions[r.Path] = r.Version
	}
	return m, versions
}

// sums returns the modules with sums in a go.sum.
func sums(t *testing.T, dir string) map[string]bool {
	t.Helper()
	text := labtest.Must(os.ReadFile(filepath.Join(dir, "go.sum")))(t)
	modules := map[string]bool{}
	for line := range strings.Lines(string(text)) {
		modules[strings.Fields(line)[0]] = true
	}
	return modules
}

const sysPath = "golang.org/x/sys"

func TestImportAndInstall(t *testing.T) {
	env := userEnv(t)
	t.Run("import", func(t *testing.T) { testImport(t, env) })
	t.Run("install", func(t *testing.T) { testInstall(t, env) })
	t.Run("run", func(t *testing.T) { testRun(t, env) })
}

// testImport imports package rsock into a program with dependencies of its own. Its go.mod
// gets this module and x/sys, and otherwise changes only the language version, which since
// Go 1.21 must be at least that of this module, go 1.26.0; there is no toolchain line.
func testImport(t *testing.T, env []string) {
	for language, want := range map[string]string{"1.24.0": "1.26.0", "1.26.1": "1.26.1"} {
		t.Run(language, func(t *testing.T) {
			dir := t.TempDir()
			write(t, dir, map[string]string{"main.go": tcpProgram, "go.mod": "module foreign\n\ngo " + language + `

require (
	golang.org/x/net v0.34.0
	google.golang.org/grpc v1.70.0
	google.golang.org/protobuf v1.36.1
)
`})
			// Use this machine's modules, so that later runs need no network.
			run(t, dir, noWorkspaceEnv(), "go", "mod", "tidy")
			_, had := modOf(t, dir)
			hadSums := sums(t, dir)

			write(t, dir, map[string]string{"main.go": rdmaProgram})
			run(t, dir, env, "go", "get", path+"@"+version)
			run(t, dir, env, "go", "mod", "tidy")
			mod, has := modOf(t, dir)
			if mod.Go != want || mod.Toolchain != "" {
				t.Errorf("go %s, toolchain %q, want go %s and no toolchain", mod.Go, mod.Toolchain, want)
			}
			if has[path] != version {
				t.Errorf("%s %s", path, has[path])
			}
			for name, v := range has {
				if name != path && name != sysPath && v != had[name] {
					t.Errorf("%s is %s, was %s", name, v, had[name])
				}
			}
			if len(has) != len(had)+1 {
				t.Errorf("go.mod requires %v, required %v", has, had)
			}
			for name := range sums(t, dir) {
				if name != path && name != sysPath && !hadSums[name] {
					t.Errorf("go.sum has %s", name)
				}
			}

			run(t, dir, env, "go", "mod", "vendor")
			vendored := labtest.Must(os.ReadFile(filepath.Join(dir, "vendor/modules.txt")))(t)
			for line := range strings.Lines(string(vendored)) {
				if f := strings.Fields(line); f[0] == "#" && f[1] != path && had[f[1]] == "" {
					t.Errorf("%s is vendored", f[1])
				}
			}
			run(t, dir, env, "go", "build", "-mod=vendor", "-o", os.DevNull)
		})
	}
}

// testInstall installs the commands, and runs them.
func testInstall(t *testing.T, env []string) {
	bin := t.TempDir()
	env = append(env, "GOBIN="+bin)
	for name, test := range map[string]struct {
		args   []string
		output string
		exit   int
	}{
		"verbs":   {[]string{"--help"}, "Usage: verbs", 0},
		"rdmalab": {nil, "usage:\n  rdmalab", 125},
	} {
		run(t, bin, env, "go", "install", path+"/cmd/"+name+"@"+version)
		cmd := exec.CommandContext(t.Context(), filepath.Join(bin, name), test.args...)
		out, _ := cmd.CombinedOutput()
		if exit := cmd.ProcessState.ExitCode(); exit != test.exit || !strings.Contains(string(out), test.output) {
			t.Errorf("%s %v: exit status %d: %s", name, test.args, exit, out)
		}
	}
}

// testRun runs verbs demo without installing it, with a device in user space.
func testRun(t *testing.T, env []string) {
	out := run(t, t.TempDir(), env, "go", "run", path+"/cmd/verbs@"+version, "demo", "--soft")
	if !strings.Contains(out, "client: SUCCESS, source and destination buffers match\n") {
		t.Errorf("it prints\n%s", out)
	}
}

// TestLibraries checks that public packages and their tests need only this module and x/sys.
func TestLibraries(t *testing.T) {
	libraries := []string{".", "./abi", "./cm", "./mmap", "./provider/...", "./rconn", "./rmsg", "./rsock", "./soft/...", "./uverbs", "./verbstest"}
	if got := modulesOf(t, append([]string{"-test"}, libraries...)...); !slices.Equal(got, []string{path, sysPath}) {
		t.Errorf("they need %v", got)
	}
}

// TestRequirements checks that go.mod requires exactly what the packages of this module and
// their tests import. go mod tidy leaves other requirements, as after go work sync.
func TestRequirements(t *testing.T) {
	mod, _ := modOf(t, root)
	want := []string{path}
	for _, r := range mod.Require {
		want = append(want, r.Path)
	}
	slices.Sort(want)
	if got := modulesOf(t, "-test", "./..."); !slices.Equal(got, want) {
		t.Errorf("needed is %v, and required %v", got, want)
	}
}

// TestCommands checks that the commands link no packages for fonts, TeX, PDF or networks.
func TestCommands(t *testing.T) {
	for _, m := range modulesOf(t, "./cmd/...") {
		for _, heavy := range []string{"gonum.org", "golang.org/x/image", "latex", "pdf", "font", "freetype", "golang.org/x/net", "google.golang.org"} {
			if strings.Contains(m, heavy) {
				t.Errorf("they link %s", m)
			}
		}
	}
}

// modulesOf returns the modules on which packages of this module depend.
func modulesOf(t *testing.T, args ...string) []string {
	t.Helper()
	out := run(t, root, noWorkspaceEnv(), "go", append([]string{"list", "-deps", "-f", "{{with .Module}}{{.Path}}{{end}}"}, args...)...)
	modules := strings.Fields(out)
	slices.Sort(modules)
	return slices.Compact(modules)
}
