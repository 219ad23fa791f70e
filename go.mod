module github.com/goverbs/verbs

go 1.26.8

require (
	github.com/alecthomas/kong v1.17.0 // indirect
	github.com/cavaliergopher/cpio v1.0.1 // indirect
	github.com/cilium/ebpf v0.22.0 // indirect
	github.com/google/go-cmp v0.7.0 // indirect
	github.com/vishvananda/netlink v1.3.1 // indirect
	github.com/vishvananda/netns v0.0.5 // indirect
	golang.org/x/sys v0.49.0 // indirect
)
