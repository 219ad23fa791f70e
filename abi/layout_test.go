package abi

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
	"unsafe"

	"github.com/goverbs/verbs/internal/labtest/tool"
)

// typ is a Go type with its C type. path leads from the named C type to the unnamed one
// inside it. members contains the members' names, each in C and then in Go.
type typ struct {
	c, path string
	typ     reflect.Type
	members string
}

// place returns the offset and size of a member of the Go type: of a field, or of the
// target of a method of that name.
func (l typ) place(member string) (off, size uintptr) {
	if f, ok := l.typ.FieldByName(member); ok {
		return f.Offset, f.Type.Size()
	}
	// Leave room for an element of a flexible array, which is past the end.
	v := reflect.New(reflect.StructOf([]reflect.StructField{
		{Name: "T", Type: l.typ}, {Name: "Room", Type: reflect.TypeFor[[1 << 10]byte]()},
	}))
	at := v.Elem().Field(0).Addr().MethodByName(member).Call(nil)[0]
	return at.Pointer() - v.Pointer(), at.Type().Elem().Size()
}

// TestLayoutAgainstC compares every type, member and constant in C with Go.
func TestLayoutAgainstC(t *testing.T) {
	root := headers(t)
	values := constants(t)
	var src strings.Builder
	src.WriteString("#include <stdio.h>\n#include <stddef.h>\n")
	for line := range strings.Lines(readLayout(t)) {
		if h, ok := strings.CutPrefix(line, "# include "); ok {
			fmt.Fprintf(&src, "#include <%s>\n", strings.TrimSpace(h))
		}
	}
	src.WriteString("int main(void) {\n")
	var want []string
	say := func(what, format string, expr string, wantValue any) {
		fmt.Fprintf(&src, "printf(\"%%s %s\\n\", %q, %s);\n", format, what, expr)
		want = append(want, fmt.Sprint(what, " ", wantValue))
	}
	for _, l := range types {
		expr, base := l.c, ""
		if l.path != "" {
			expr, base = fmt.Sprintf("((%s *)0)->%s", l.c, l.path), fmt.Sprintf(" - offsetof(%s, %s)", l.c, l.path)
		}
		say(fmt.Sprint("sizeof ", l.c, ".", l.path), "%zu", "sizeof("+expr+")", l.typ.Size())
		// 32-bit machines align 64-bit numbers to 4 bytes in Go, unlike in C.
		// Padding keeps the offsets, and the kernel takes any address.
		const most = unsafe.Alignof(uint64(0))
		say(fmt.Sprint("alignof ", l.c, ".", l.path), "%zu", fmt.Sprintf("_Alignof(%s) < %d ? _Alignof(%[1]s) : %[2]d", expr, most), l.typ.Align())
		for names := range slices.Chunk(strings.Fields(l.members), 2) {
			off, size := l.place(names[1])
			member := strings.TrimPrefix(l.path+"."+names[0], ".")
			say("size "+l.c+"."+member, "%zu", fmt.Sprintf("sizeof(((%s *)0)->%s)", l.c, member), size)
			say("offset "+l.c+"."+member, "%zu", fmt.Sprintf("offsetof(%s, %s)%s", l.c, member, base), off)
		}
	}
	for name, value := range values {
		say(name, "%lld", "(long long)("+name+")", value)
	}
	src.WriteString("return 0; }\n")

	dir := t.TempDir()
	bin := filepath.Join(dir, "layout")
	cc := exec.Command(tool.Path(t, "gcc"), "-w", "-O0", "-x", "c", "-", "-o", bin,
		"-I", filepath.Join(root, "usr/include"), "-isystem", filepath.Join(root, "usr/lib/linux/uapi", map[string]string{"amd64": "x86", "arm64": "arm64", "s390x": "s390"}[runtime.GOARCH]))
	cc.Stdin = strings.NewReader(src.String())
	if out, err := cc.CombinedOutput(); err != nil {
		t.Fatalf("gcc: %v\n%.4000s", err, out)
	}
	out, err := exec.Command(bin).Output()
	if err != nil {
		t.Fatal(err)
	}
	got := strings.Split(strings.TrimSpace(string(out)), "\n")
	if len(got) != len(want) || len(got) < 2000 {
		t.Fatalf("C said %d lines, want %d, and more than 2000", len(got), len(want))
	}
	for i := range got {
		if got[i] != want[i] {
			t.Errorf("C has %q, Go %q", got[i], want[i])
		}
	}
	t.Logf("%d sizes, offsets and values agree", len(got))
}

// headers returns the folder with the headers that the files were generated from. The generator
// has fetched them into the user's cache; without them it skips the test.
func headers(t *testing.T) string {
	banner, _, _ := strings.Cut(readLayout(t), "\n")
	fields := strings.Fields(strings.TrimSuffix(banner, ". DO NOT EDIT."))
	cache := os.Getenv("VERBS_CACHE")
	if cache == "" {
		base, err := os.UserCacheDir()
		if err != nil {
			t.Fatal(err)
		}
		cache = filepath.Join(base, "goverbs")
	}
	root := filepath.Join(cache, "debian/sid", fields[len(fields)-2]+"_"+fields[len(fields)-1])
	if _, err := os.Stat(root); err != nil {
		t.Skipf("%v: run go run ./gen -check, which fetches the headers", err)
	}
	return root
}

func readLayout(t *testing.T) string {
	b, err := os.ReadFile("zabi_layout.txt")
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// constants returns all constants as 64-bit two's complement.
func constants(t *testing.T) map[string]int64 {
	values := map[string]int64{}
	for line := range strings.Lines(readLayout(t)) {
		name, value, ok := strings.Cut(strings.TrimPrefix(strings.TrimSpace(line), "const "), " = ")
		if !ok || !strings.HasPrefix(line, "const ") {
			continue
		}
		v, err := strconv.ParseInt(value, 0, 64)
		if err != nil {
			u, err := strconv.ParseUint(value, 0, 64)
			if err != nil {
				t.Fatalf("%q: %v", line, err)
			}
			v = int64(u)
		}
		values[name] = v
	}
	return values
}
