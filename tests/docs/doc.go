// Package docs holds the tables in docs/ to account: they name what exists, and
// the kernel answers what they say.
package docs
