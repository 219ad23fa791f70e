// Package bridge contains functions of package uverbs for other packages of this module,
// which programs cannot call.
package bridge

// RecycleCQ closes a *uverbs.CQ that has no channel and returns a new, empty one with
// the same kernel object. That takes a small part of the time of destroying a CQ and
// making another. It fails with verbs.ErrInUse while QPs use the CQ.
var RecycleCQ func(cq any) (next any, err error)

// HasCompletions reports whether a poll of a *uverbs.CQ would return a completion. It is always
// false for a driver without [provider.Peeker].
var HasCompletions func(cq any) bool
