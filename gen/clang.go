package main

import (
	"bytes"
	"context"
	"debug/elf"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/cilium/ebpf/btf"
)

// header is one parsed header: the names that it defines, in their order.
type header struct {
	path    string
	structs []string // "struct x", "union y"
	consts  []string // enumerators and macros, in the order of the text
	text    string
}

// parsedHeaders is the result of compiling a set of headers.
type parsedHeaders struct {
	headers []*header
	types   *btf.Spec
	values  map[string]constant
}

// constant is the value of an enumerator or macro.
type constant struct {
	bits     uint64
	negative bool
	enum     string // "enum tag", or "" for a macro or anonymous enum
}

func (c constant) String() string {
	if c.negative {
		return strconv.FormatInt(int64(c.bits), 10)
	}
	if c.enum == "" && c.bits > 9999 {
		return fmt.Sprintf("%#x", c.bits)
	}
	return strconv.FormatUint(c.bits, 10)
}

var (
	reComment = regexp.MustCompile(`(?s)/\*.*?\*/|//[^\n]*`)
	reStruct  = regexp.MustCompile(`(?m)^(struct|union)\s+(\w+)\s*\{`)
	reEnum    = regexp.MustCompile(`(?s)\benum\s*(\w*)\s*\{(.*?)\}`)
	reDefine  = regexp.MustCompile(`(?m)^[ \t]*#[ \t]*define[ \t]+(\w+)[ \t]+\S`)
	reErrLine = regexp.MustCompile(`(?m)^[^:\n]+:(\d+):\d+: (?:fatal )?error:`)
)

// parseHeaders compiles the headers found under root/usr/include, or by their absolute paths.
func parseHeaders(ctx context.Context, root string, names []string) (*parsedHeaders, error) {
	p := &parsedHeaders{values: map[string]constant{}}
	include := filepath.Join(root, "usr/include")
	var source strings.Builder
	for _, name := range names {
		file, shown := filepath.Join(include, name), name
		if filepath.IsAbs(name) {
			file, shown = name, filepath.Base(name)
		}
		b, err := os.ReadFile(file)
		if err != nil {
			return nil, err
		}
		p.headers = append(p.headers, scanHeader(shown, string(b), p.values))
		fmt.Fprintf(&source, "#include <%s>\n", name)
	}
	cc := compiler{ctx: ctx, args: []string{
		"-target", "bpf", "-g", "-O0", "-nostdinc", "-ferror-limit=0",
		"-I", include, "-I", filepath.Join(include, "x86_64-linux-gnu"), "-I", filepath.Join(root, "usr/lib/linux/uapi/x86"),
	}}
	// BTF describes only the types of variables, so each type gets a variable.
	var vars strings.Builder
	for _, h := range p.headers {
		for i, c := range h.structs {
			fmt.Fprintf(&vars, "%s variable_%s_%d;\n", c, camel(filepath.Base(h.path[:len(h.path)-2])), i)
		}
	}
	object, err := cc.object(source.String() + strings.ReplaceAll(vars.String(), "-", "_"))
	if err != nil {
		return nil, err
	}
	if p.types, err = btf.LoadSpecFromReader(bytes.NewReader(object)); err != nil {
		return nil, err
	}
	if err := p.evaluate(cc, source.String()); err != nil {
		return nil, err
	}
	return p, nil
}

// scanHeader finds the names that a header defines. Layouts and values come from clang.
func scanHeader(path, text string, values map[string]constant) *header {
	h := &header{path: path, text: reComment.ReplaceAllString(text, " ")}
	for _, m := range reStruct.FindAllStringSubmatch(h.text, -1) {
		h.structs = append(h.structs, m[1]+" "+m[2])
	}
	type found struct {
		pos  int
		name string
	}
	var all []found
	add := func(pos int, name, enum string) {
		if _, dup := values[name]; dup {
			return
		}
		values[name] = constant{enum: enum}
		all = append(all, found{pos, name})
	}
	for _, m := range reEnum.FindAllStringSubmatchIndex(h.text, -1) {
		enum := ""
		if tag := h.text[m[2]:m[3]]; tag != "" {
			enum = "enum " + tag
		}
		body := regexp.MustCompile(`(?m)^\s*#.*$`).ReplaceAllString(h.text[m[4]:m[5]], "")
		for _, v := range strings.Split(body, ",") {
			if name := regexp.MustCompile(`^\s*(\w+)`).FindStringSubmatch(v); name != nil {
				add(m[4], name[1], enum)
			}
		}
	}
	for _, m := range reDefine.FindAllStringSubmatchIndex(h.text, -1) {
		add(m[2], h.text[m[2]:m[3]], "")
	}
	slices.SortStableFunc(all, func(a, b found) int { return a.pos - b.pos })
	for _, f := range all {
		h.consts = append(h.consts, f.name)
	}
	return h
}

// evaluate finds the values of all names and drops those that are not integers.
func (p *parsedHeaders) evaluate(cc compiler, includes string) error {
	var names []string
	for _, h := range p.headers {
		names = append(names, h.consts...)
	}
	base := strings.Count(includes, "\n")
	source := func() string {
		var b strings.Builder
		b.WriteString(includes)
		for _, n := range names {
			fmt.Fprintf(&b, "const unsigned long long value_%s[2] = {(unsigned long long)(%s), (%s) < 0};\n", n, n, n)
		}
		return b.String()
	}
	bad, err := cc.errorLines(source())
	if err != nil {
		return err
	}
	for i := len(names) - 1; i >= 0; i-- {
		if slices.Contains(bad, base+i+1) {
			delete(p.values, names[i])
			names = slices.Delete(names, i, i+1)
		}
	}
	object, err := cc.object(source())
	if err != nil {
		return err
	}
	f, err := elf.NewFile(bytes.NewReader(object))
	if err != nil {
		return err
	}
	syms, err := f.Symbols()
	if err != nil {
		return err
	}
	for _, s := range syms {
		name, ok := strings.CutPrefix(s.Name, "value_")
		if !ok {
			continue
		}
		data, err := f.Sections[s.Section].Data()
		if err != nil {
			return err
		}
		c := p.values[name]
		c.bits = f.ByteOrder.Uint64(data[s.Value:])
		c.negative = f.ByteOrder.Uint64(data[s.Value+8:]) != 0
		p.values[name] = c
	}
	for _, h := range p.headers {
		h.consts = slices.DeleteFunc(h.consts, func(n string) bool { _, ok := p.values[n]; return !ok })
	}
	return nil
}

type compiler struct {
	ctx  context.Context
	args []string
}

func (c compiler) run(source string, args ...string) (stderr []byte, err error) {
	cmd := exec.CommandContext(c.ctx, "clang", append(append(slices.Clone(c.args), args...), "-x", "c", "-")...)
	cmd.Stdin = strings.NewReader(source)
	var errs bytes.Buffer
	cmd.Stderr = &errs
	err = cmd.Run()
	if errors.Is(err, exec.ErrNotFound) {
		err = fmt.Errorf("%w (apt-get install clang)", err)
	}
	return errs.Bytes(), err
}

// object compiles source and returns the object file.
func (c compiler) object(source string) ([]byte, error) {
	dir, err := os.MkdirTemp("", "gen-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	out := filepath.Join(dir, "out.o")
	if msg, err := c.run(source, "-c", "-o", out); err != nil {
		return nil, fmt.Errorf("clang: %w\n%s", err, msg)
	}
	return os.ReadFile(out)
}

// errorLines returns the numbers of the lines that do not compile.
func (c compiler) errorLines(source string) ([]int, error) {
	msg, err := c.run(source, "-fsyntax-only")
	if _, failed := errors.AsType[*exec.ExitError](err); err != nil && !failed {
		return nil, err
	}
	var lines []int
	for _, m := range reErrLine.FindAllSubmatch(msg, -1) {
		n, _ := strconv.Atoi(string(m[1]))
		lines = append(lines, n)
	}
	return lines, nil
}
