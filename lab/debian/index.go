package debian

import (
	"fmt"
	"slices"
	"strings"

	"pault.ag/go/debian/version"
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
		if !found || r.rank < best.rank || r.rank == best.rank && newer(r.version, best.version) {
			best, found = r, true
		}
	}
	if !found {
		return best, fmt.Errorf("package %s %s: %w", p.Name, p.Version, ErrNotFound)
	}
	return best, nil
}

// dependencies returns the alternatives for each entry of a list in the syntax of Depends, by their
// names.
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

// closure is [Archive.Closure]. Dependencies come before their users.
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

// newer reports whether version a is newer than b, in dpkg's order (Debian Policy, 5.6.12).
func newer(a, b string) bool {
	va, _ := version.Parse(a) // an invalid version is older than others
	vb, _ := version.Parse(b)
	return version.Compare(va, vb) > 0
}
