package record

import "slices"

// Group is a group of lines of one kind, a section of the page.
type Group struct {
	Name string // the value of Line.Group
	Part string // the part in which it is measured
	Work string // the work, and title of the section

	// Names of its lines: a line that is missing was not measured.
	Lines  []string // on both devices
	RXE    []string // on rxe only
	Anyhow []string // which need no device
}

// The parts in which lines are measured.
const (
	Lab     = "lab"     // a kernel in QEMU, whose clock is dilated
	Native  = "native"  // User-mode Linux
	Counted = "counted" // a kernel in QEMU whose clock counts instructions
)

// Find returns the group with a name.
func Find(name string) (Group, bool) {
	i := slices.IndexFunc(Groups, func(g Group) bool { return g.Name == name })
	if i < 0 {
		return Group{}, false
	}
	return Groups[i], true
}

// Expected returns the lines of the group, driver by driver, without figures.
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

// Has reports whether a line belongs to the group.
func (g Group) Has(l Line) bool {
	return slices.ContainsFunc(g.Expected(), func(e Line) bool { return e.Key() == l.Key() })
}
