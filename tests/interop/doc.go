// Package interop runs this project's programs against each other and against
// C programs that nobody here wrote, on a real kernel. C's exit status and
// data checks decide.
package interop
