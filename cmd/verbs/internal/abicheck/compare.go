package abicheck

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/cilium/ebpf/btf"
)

// Status is how the kernel's structure compares with ours.
type Status string

const (
	Same    Status = "same"
	Newer   Status = "kernel has more"   // members than we have
	Older   Status = "kernel has fewer"  // members than we have
	Differs Status = "differs"           // members have other offsets or sizes
	Unknown Status = "not in the kernel" // or its module is not loaded, or has no BTF
)

// Difference is the result of Compare for one structure.
type Difference struct {
	Status Status
	// More lists members that only the kernel has, Fewer those that only we have,
	// and Moved those with another offset or size: "dma: at 184 size 24, the kernel
	// has it at 192 size 24".
	More, Fewer, Moved []string
	Same               int // members that agree
	Size, KernelSize   int // bytes; KernelSize is 0 if the kernel has no such type
}

// Compare compares one of our types with the kernel's of that name.
func (k *Kernel) Compare(t Type) Difference { return compare(t, k.find(t.Kind, t.Name)) }

func compare(t Type, theirs btf.Type) Difference {
	d := Difference{Status: Unknown, Size: t.Size}
	if theirs == nil {
		return d
	}
	d.KernelSize, _ = btf.Sizeof(theirs)
	ours := map[string]bool{}
	for _, m := range t.Members {
		ours[m.Path] = true
		off, size, err := locate(theirs, m.Path)
		switch {
		case err != nil && isReserved(m.Path): // other members use its bytes now
		case err != nil:
			d.Fewer = append(d.Fewer, m.Path)
		case off == m.Off && size == m.Size, reserved(m, off, size):
			d.Same++
		default:
			d.Moved = append(d.Moved, fmt.Sprintf("%s: at %d size %d, the kernel has it at %d size %d", m.Path, m.Off, m.Size, off, size))
		}
	}
	deep := func(path string) bool {
		return slices.ContainsFunc(t.Members, func(m Member) bool { return strings.HasPrefix(m.Path, path+".") })
	}
	for _, path := range paths(theirs, "", deep) {
		if !ours[path] && !ours[path+"[0]"] && !isReserved(path) {
			d.More = append(d.More, path)
		}
	}
	switch {
	case len(d.Moved) > 0:
		d.Status = Differs
	case len(d.Fewer) > 0 && d.KernelSize <= d.Size:
		d.Status = Older
	case len(d.More) > 0 || d.KernelSize > d.Size:
		d.Status = Newer
	default:
		d.Status = Same
	}
	return d
}

func isReserved(path string) bool {
	name := path[strings.LastIndex(path, ".")+1:]
	return slices.ContainsFunc([]string{"reserved", "rsvd", "pad"}, func(p string) bool { return strings.HasPrefix(name, p) })
}

// reserved reports whether m is the rest, in newer headers, of a larger reserved
// member, which the kernel has at off.
func reserved(m Member, off, size int) bool {
	return isReserved(m.Path) && off <= m.Off && m.Off+m.Size <= off+size
}

// locate finds a member of t, or of an unnamed type inside it. "[0]" in a path
// means an element.
func locate(t btf.Type, path string) (off, size int, err error) {
	head, rest, nested := strings.Cut(path, ".")
	name, element := strings.CutSuffix(head, "[0]")
	m, base, ok := member(t, name)
	if !ok {
		return 0, 0, errors.New("no such member")
	}
	mt := btf.UnderlyingType(m.Type)
	if a, isArray := mt.(*btf.Array); isArray && element {
		mt = btf.UnderlyingType(a.Type)
	}
	if nested {
		off, size, err = locate(mt, rest)
		return base + off, size, err
	}
	size, err = btf.Sizeof(mt)
	return base, size, err
}

func member(t btf.Type, name string) (btf.Member, int, bool) {
	for _, m := range membersOf(t) {
		off := int(m.Offset.Bytes())
		if m.Name == name {
			return m, off, true
		}
		if m.Name == "" {
			if found, inner, ok := member(m.Type, name); ok {
				return found, off + inner, true
			}
		}
	}
	return btf.Member{}, 0, false
}

// paths returns the paths of t's members, after prefix, and of the members inside
// those for which deep returns true. It leaves out members of no size, such as a
// flexible array.
func paths(t btf.Type, prefix string, deep func(path string) bool) (list []string) {
	for _, m := range membersOf(t) {
		path := prefix + m.Name
		if m.Name == "" {
			list = append(list, paths(m.Type, prefix, deep)...)
			continue
		}
		if size, err := btf.Sizeof(m.Type); err == nil && size == 0 {
			continue
		}
		list = append(list, path)
		if deep(path) {
			list = append(list, paths(m.Type, path+".", deep)...)
		}
	}
	return list
}

func membersOf(t btf.Type) []btf.Member {
	switch t := btf.UnderlyingType(t).(type) {
	case *btf.Struct:
		return t.Members
	case *btf.Union:
		return t.Members
	}
	return nil
}
