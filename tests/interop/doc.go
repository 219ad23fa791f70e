// Package interop runs this project's programs against each other and against existing C
// programs, on a real kernel. The exit status and the data checks of the C programs
// decide.
package interop
