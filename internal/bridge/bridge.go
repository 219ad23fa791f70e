// Package bridge has what package uverbs offers to other packages of this module and
// not to programs.
package bridge

// RecycleCQ closes a *uverbs.CQ that has no channel and returns a new one with the same
// kernel object, which is empty: that takes a small part of the time of destroying
// a CQ and making another. It fails with verbs.ErrInUse while QPs use the CQ.
var RecycleCQ func(cq any) (next any, err error)
