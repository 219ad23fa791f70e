package record

import (
	"fmt"
	"math"
)

// Fewest is how many repetitions a ratio wants.
const Fewest = 9

// Line is one work that both sides did.
type Line struct {
	Group  string  `json:"group"`            // Name of one of Groups
	Device string  `json:"device,omitempty"` // none: the work has nothing to do with one
	Name   string  `json:"name"`
	Unit   string  `json:"unit"`
	Higher bool    `json:"higher,omitempty"` // greater figures are better
	Beside string  `json:"beside"`           // whose figures C's are
	Target float64 `json:"target,omitempty"` // least Ratio that meets it; none: nothing is wanted
	Slack  float64 `json:"slack,omitempty"`  // without a Target: by how much Ours may be worse than C, in Unit
	Ours   Sample  `json:"ours"`
	C      Sample  `json:"c,omitempty"` // without it, Ours is held to Slack alone
}

// Verdict is what a line came to.
type Verdict string

// The verdicts.
const (
	Met         Verdict = "met"
	Missed      Verdict = "missed"
	TooNoisy    Verdict = "too noisy"
	TooFew      Verdict = "too few"
	NoTarget    Verdict = "no target"
	NotMeasured Verdict = "not measured"
)

// Ratio is how much better Ours' median is than C's, more than 1 where it is
// better, and whether it may be told: if not, the number is 0 and the verdict
// says why.
func (l Line) Ratio() (float64, Verdict) {
	if v := l.unfit(); v != "" {
		return 0, v
	}
	if len(l.C) == 0 {
		return 0, NoTarget
	}
	r := l.C.Median() / l.Ours.Median()
	if l.Higher {
		r = 1 / r
	}
	if math.IsNaN(r) || math.IsInf(r, 0) {
		return 0, TooNoisy // nothing divides by zero
	}
	return r, ""
}

// unfit is why nothing can be said of the line, if so.
func (l Line) unfit() Verdict {
	switch {
	case len(l.Ours) == 0:
		return NotMeasured
	case len(l.Ours) < Fewest, len(l.C) != 0 && len(l.C) < Fewest:
		return TooFew
	case !l.Ours.Steady(), len(l.C) != 0 && !l.C.Steady():
		return TooNoisy
	}
	return ""
}

// Verdict holds the line against its target.
func (l Line) Verdict() Verdict {
	if len(l.C) == 0 && len(l.Ours) != 0 { // a limit is one for every repetition
		return met(l.Ours.Max() <= l.Slack)
	}
	if v := l.unfit(); v != "" {
		return v
	}
	if l.Target != 0 {
		r, v := l.Ratio()
		if v != "" {
			return v
		}
		return met(r >= l.Target)
	}
	if l.Slack != 0 {
		return met(l.Ours.Median() <= l.C.Median()+l.Slack)
	}
	return NoTarget
}

func met(ok bool) Verdict {
	if ok {
		return Met
	}
	return Missed
}

// String is the line as tests log it.
func (l Line) String() string {
	name := l.Name
	if l.Device != "" {
		name = l.Device + ": " + name
	}
	told := string(l.Verdict())
	if r, v := l.Ratio(); v == "" {
		told = fmt.Sprintf("ratio %.2f: %s", r, told)
	}
	return fmt.Sprintf("%-44s Go %-26v %s %-26v %s, %s", name, l.Ours, l.Beside, l.C, l.Unit, told)
}
