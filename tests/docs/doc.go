// Package docs tests the documents: the names in them exist, and the kernel behaves as the
// tables describe.
package docs
