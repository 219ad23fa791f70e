package sys

import "fmt"

// Before reports whether a kernel's release, "6.12.1-amd64", is before version major.minor. One that
// cannot be read is before all.
func Before(release string, major, minor int) bool {
	var x, y int
	fmt.Sscanf(release, "%d.%d", &x, &y)
	return x < major || x == major && y < minor
}
