package cli

import (
	"fmt"
	"math"
	"reflect"
	"strconv"
	"strings"

	"github.com/alecthomas/kong"
)

// Sizes makes kong parse options of type:"size" with parseSize.
var Sizes = kong.NamedMapper("size", kong.MapperFunc(func(ctx *kong.DecodeContext, target reflect.Value) error {
	var text string
	if err := ctx.Scan.PopValueInto("size", &text); err != nil {
		return err
	}
	n, err := parseSize(text)
	target.SetInt(int64(n))
	return err
}))

// parseSize returns a number of bytes: "4096", "4K" and "4KiB" are the same.
func parseSize(text string) (int, error) {
	digits := strings.TrimRight(text, "KMGkmgiIbB")
	shift, known := map[string]int{
		"": 0, "b": 0, "k": 10, "kib": 10, "m": 20, "mib": 20, "g": 30, "gib": 30,
	}[strings.ToLower(text[len(digits):])]
	n, err := strconv.Atoi(digits)
	if err != nil || !known || n > math.MaxInt>>shift || n < math.MinInt>>shift {
		return 0, fmt.Errorf("%q is not a size: want bytes, or a number with K, M or G (powers of 1024)", text)
	}
	return n << shift, nil
}
