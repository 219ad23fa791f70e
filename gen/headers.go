package main

import (
	"context"
	"errors"

	"github.com/goverbs/verbs/internal/debian"
)

// What is generated from. This is the one place that pins the version.
const (
	headersSuite   = "sid"
	headersPackage = "linux-libc-dev"
	headersVersion = "7.2.13-1"
)

// headers are those whose structs, enums and macros become Go. Types they use
// from other headers are generated too.
var headers = []string{
	"rdma/ib_user_ioctl_cmds.h",
	"rdma/ib_user_ioctl_verbs.h",
	"rdma/ib_user_sa.h",
	"rdma/ib_user_verbs.h",
	"rdma/rdma_netlink.h",
	"rdma/rdma_user_cm.h",
	"rdma/rdma_user_ioctl.h",
	"rdma/rdma_user_ioctl_cmds.h",
	"rdma/rdma_user_rxe.h",
	"rdma/siw-abi.h",
}

// fetchHeaders returns the folder of the pinned package, or of the newest one
// if that is gone, and the version it has.
func fetchHeaders(ctx context.Context, a debian.Archive) (root, version string, err error) {
	p := debian.Package{Name: headersPackage, Version: headersVersion}
	root, err = a.Unpack(ctx, p)
	if errors.Is(err, debian.ErrNotFound) {
		if p, err = a.Find(ctx, headersPackage); err == nil {
			root, err = a.Unpack(ctx, p)
		}
	}
	return root, p.Version, err
}
