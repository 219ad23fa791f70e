package record

import "slices"

// Group is lines of one kind, a section of the page.
type Group struct {
	Name string // as Line.Group has it
	Part string // where it is measured
	Work string // what is done, the title of the section

	// Names of what belongs to it: a line that is missing was not measured.
	Lines  []string // on both devices
	RXE    []string // on rxe alone
	Anyhow []string // which has nothing to do with a device
}

// Where things are measured.
const (
	Lab     = "lab"     // a kernel in QEMU, whose clock is dilated
	Native  = "native"  // User-mode Linux
	Counted = "counted" // a kernel in QEMU whose clock counts instructions
)

// Find is the group of that name.
func Find(name string) (Group, bool) {
	i := slices.IndexFunc(Groups, func(g Group) bool { return g.Name == name })
	if i < 0 {
		return Group{}, false
	}
	return Groups[i], true
}

// Expected is what belongs to the group, driver by driver, as lines without figures.
func (g Group) Expected() []Line {
	var lines []Line
	add := func(device string, names []string) {
		for _, name := range names {
			lines = append(lines, Line{Group: g.Name, Device: device, Name: name})
		}
	}
	add("", g.Anyhow)
	add("rxe0", slices.Concat(g.Lines, g.RXE))
	add("siw0", g.Lines)
	return lines
}

// Has says whether a line belongs to the group.
func (g Group) Has(l Line) bool {
	return slices.ContainsFunc(g.Expected(), func(e Line) bool { return e.Key() == l.Key() })
}
