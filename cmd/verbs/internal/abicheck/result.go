package abicheck

import (
	"fmt"
	"slices"
	"strings"
)

// Result is the effect of the kernel's version of a structure on the project.
type Result struct {
	Type    string `json:"type"`    // "struct siw_cqe"
	Feature string `json:"feature"` // what uses it
	Status  Status `json:"status"`
	Breaks  bool   `json:"breaks"`        // the feature does not work
	Why     string `json:"why,omitempty"` // why it breaks, or does not

	Size       int      `json:"size"`                  // bytes, ours
	KernelSize int      `json:"kernel_size,omitempty"` // 0 if unknown
	More       []string `json:"more,omitempty"`        // members that only the kernel has
	Fewer      []string `json:"fewer,omitempty"`       // members that only we have
	Moved      []string `json:"moved,omitempty"`
}

// Used compares every structure that the project uses with the kernel's, by
// feature.
func (k *Kernel) Used() []Result {
	types := map[string]Type{}
	for _, t := range Types() {
		types[t.String()] = t
	}
	var list []Result
	for _, u := range uses {
		for _, name := range u.names() {
			list = append(list, u.evaluate(name, k.Compare(types[name]), k.Absent))
		}
	}
	return list
}

// evaluate returns the effect of a difference on a use.
func (u use) evaluate(name string, d Difference, absent []string) Result {
	r := Result{
		Type: name, Feature: u.feature, Status: d.Status,
		Size: d.Size, KernelSize: d.KernelSize, More: d.More, Fewer: d.Fewer, Moved: d.Moved,
	}
	switch {
	case d.Status == Unknown && u.module != "" && slices.Contains(absent, u.module):
		r.Why = fmt.Sprintf("module %s is not loaded, or has no BTF", u.module)
	case d.Status == Unknown:
		r.Why = "the kernel is older than the structure, or its BTF does not have it"
	case d.Status == Differs:
		r.Breaks, r.Why = true, "each side would read what the other wrote elsewhere"
	case u.mapped && d.KernelSize != d.Size:
		r.Breaks, r.Why = true, "elements of a shared queue would begin elsewhere on the other side"
	case d.Status == Older:
		r.Why = "without " + strings.Join(u.without(name, d.Fewer), ", ")
	case d.Status == Newer && u.mapped:
		r.Why = "new members lie in formerly reserved room, and only programs that ask for them use them"
	case d.Status == Newer:
		r.Why = "requests carry their size: the kernel accepts the short request, and limits its answer to the room for it"
	}
	return r
}

// without returns the features that need the missing members, or else the members.
func (u use) without(name string, members []string) (list []string) {
	for _, m := range members {
		what := m
		for at, feature := range memberFeatures {
			if full := name + " " + m; full == at || strings.HasPrefix(full, at+".") {
				what = feature
			}
		}
		if !slices.Contains(list, what) {
			list = append(list, what)
		}
	}
	return list
}
