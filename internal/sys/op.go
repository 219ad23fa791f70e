package sys

import "strings"

// SplitOp splits an operation, "create QP in" on "PD 3" or "wait on" on "CQ 5", into its
// verb and its object, for a verbs.Error: "create" and "QP in PD 3", "wait" and "CQ 5".
func SplitOp(op, on string) (verb, object string) {
	verb, object, _ = strings.Cut(op, " ")
	switch object {
	case "in", "on", "of", "to", "from", "with", "by":
		return verb, on
	}
	return verb, strings.TrimSpace(object + " " + on)
}
