package cli

import (
	"fmt"
	"math"
	"strconv"
	"strings"
)

// Size is an option that is a number of bytes: "4096", "4K" and "4KiB" are the same.
type Size int

// UnmarshalText parses a size.
func (s *Size) UnmarshalText(text []byte) error {
	digits := strings.TrimRight(string(text), "KMGkmgiIbB")
	shift, known := map[string]int{
		"": 0, "b": 0, "k": 10, "kib": 10, "m": 20, "mib": 20, "g": 30, "gib": 30,
	}[strings.ToLower(string(text[len(digits):]))]
	n, err := strconv.Atoi(digits)
	if err != nil || !known || n > math.MaxInt>>shift || n < math.MinInt>>shift {
		return fmt.Errorf("%q is not a size: want bytes, or a number with K, M or G (powers of 1024)", text)
	}
	*s = Size(n << shift)
	return nil
}
