package debian

import (
	"fmt"
	"slices"
	"strings"
)

// index is the contents of package lists.
type index struct {
	packages  map[string][]record
	providers map[string][]string // of names that other packages provide
}

func (ix *index) add(r record) {
	ix.packages[r.name] = append(ix.packages[r.name], r)
	for _, alternatives := range dependencies(r.provides) {
		if p := alternatives[0]; !slices.Contains(ix.providers[p], r.name) {
			ix.providers[p] = append(ix.providers[p], r.name)
		}
	}
}

// newest returns the newest version of a package in the preferred suite, or the version that p
// names.
func (ix *index) newest(p Package) (best record, err error) {
	found := false
	for _, r := range ix.packages[p.Name] {
		if p.Version != "" && r.version != p.Version {
			continue
		}
		if !found || r.rank < best.rank || r.rank == best.rank && compareVersions(r.version, best.version) > 0 {
			best, found = r, true
		}
	}
	if !found {
		return best, fmt.Errorf("package %s %s: %w", p.Name, p.Version, ErrNotFound)
	}
	return best, nil
}

// dependencies returns the names of a list in the syntax of Depends, for each entry the
// alternatives, without architectures and versions.
func dependencies(list string) (all [][]string) {
	for entry := range strings.SplitSeq(list, ",") {
		var names []string
		for alternative := range strings.SplitSeq(entry, "|") {
			if f := strings.Fields(alternative); len(f) > 0 {
				name, _, _ := strings.Cut(f[0], ":") // "python3:any"
				name, _, _ = strings.Cut(name, "(")
				names = append(names, name)
			}
		}
		if names != nil {
			all = append(all, names)
		}
	}
	return all
}

// closure is [Archive.Closure]. Dependencies come before what needs them.
func (ix *index) closure(have []Package, names []string) (list []Package, err error) {
	present := map[string]bool{} // packages, and names that they provide
	for _, p := range have {
		present[p.Name] = true
	}
	var visit func(p Package) error
	visit = func(p Package) error {
		r, err := ix.newest(p)
		if err != nil || present[r.name] {
			return err
		}
		present[r.name] = true
		for _, provided := range dependencies(r.provides) {
			present[provided[0]] = true
		}
		for _, alternatives := range dependencies(r.depends) {
			if slices.ContainsFunc(alternatives, func(n string) bool { return present[n] }) {
				continue
			}
			name, err := ix.choose(alternatives)
			if err == nil {
				err = visit(Package{Name: name})
			}
			if err != nil {
				return fmt.Errorf("%s needs %w", r.name, err)
			}
		}
		list = append(list, Package{r.name, r.version})
		return nil
	}
	for _, n := range names {
		name, version, _ := strings.Cut(n, "=")
		if err := visit(Package{name, version}); err != nil {
			return nil, err
		}
	}
	return list, nil
}

// choose returns the first of the alternatives that is a package, or a provider of one.
func (ix *index) choose(alternatives []string) (string, error) {
	for _, n := range alternatives {
		if len(ix.packages[n]) > 0 {
			return n, nil
		}
	}
	for _, n := range alternatives {
		if p := ix.providers[n]; len(p) > 0 {
			return p[0], nil
		}
	}
	return "", fmt.Errorf("package %s: %w", strings.Join(alternatives, " or "), ErrNotFound)
}

// compareVersions compares versions as dpkg does (Debian Policy, 5.6.12): it returns a negative
// number if a is older than b, and a positive one if it is newer.
func compareVersions(a, b string) int {
	epoch := func(v string) (string, string) {
		if e, rest, ok := strings.Cut(v, ":"); ok {
			return e, rest
		}
		return "0", v
	}
	ea, a := epoch(a)
	eb, b := epoch(b)
	if c := compareParts(ea, eb); c != 0 {
		return c
	}
	revision := func(v string) (string, string) {
		if i := strings.LastIndexByte(v, '-'); i >= 0 {
			return v[:i], v[i+1:]
		}
		return v, ""
	}
	a, ra := revision(a)
	b, rb := revision(b)
	if c := compareParts(a, b); c != 0 {
		return c
	}
	return compareParts(ra, rb)
}

// compareParts compares text and numbers in turns. "~" is less than the end, letters are less
// than other characters.
func compareParts(a, b string) int {
	isDigit := func(c byte) bool { return '0' <= c && c <= '9' }
	order := func(s string) int { // of the first character
		switch {
		case s == "" || isDigit(s[0]):
			return 0
		case s[0] == '~':
			return -1
		case s[0] >= 'A' && s[0] <= 'Z' || s[0] >= 'a' && s[0] <= 'z':
			return int(s[0])
		}
		return int(s[0]) + 256
	}
	for a != "" || b != "" {
		for a != "" && !isDigit(a[0]) || b != "" && !isDigit(b[0]) {
			if c := order(a) - order(b); c != 0 {
				return c
			}
			a, b = a[1:], b[1:]
		}
		number := func(s *string) string {
			n := 0
			for n < len(*s) && isDigit((*s)[n]) {
				n++
			}
			digits := strings.TrimLeft((*s)[:n], "0")
			*s = (*s)[n:]
			return digits
		}
		na, nb := number(&a), number(&b)
		if len(na) != len(nb) {
			return len(na) - len(nb)
		}
		if c := strings.Compare(na, nb); c != 0 {
			return c
		}
	}
	return 0
}
