package main

import (
	"context"
	"errors"

	"github.com/goverbs/verbs/lab/debian"
)

// Source of the headers. The version is pinned only here.
const (
	headersSuite   = "sid"
	headersPackage = "linux-libc-dev"
	headersVersion = "7.2.13-1"
)

// headers lists the headers whose structs, enums and macros are generated. Types that
// they use from other headers are generated as well.
var headers = []string{
	"rdma/erdma-abi.h",
	"rdma/ib_user_ioctl_cmds.h",
	"rdma/ib_user_ioctl_verbs.h",
	"rdma/ib_user_sa.h",
	"rdma/ib_user_verbs.h",
	"rdma/mlx5-abi.h",
	"rdma/mlx5_user_ioctl_cmds.h",
	"rdma/mlx5_user_ioctl_verbs.h",
	"rdma/rdma_netlink.h",
	"rdma/rdma_user_cm.h",
	"rdma/rdma_user_ioctl.h",
	"rdma/rdma_user_ioctl_cmds.h",
	"rdma/rdma_user_rxe.h",
	"rdma/siw-abi.h",
}

// fetchHeaders returns the folder and the version of the pinned package, or of the newest
// one if the pinned one is gone.
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
