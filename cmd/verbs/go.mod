module github.com/goverbs/verbs/cmd/verbs

go 1.26.0

require (
	github.com/HdrHistogram/hdrhistogram-go v1.4.0
	github.com/alecthomas/kong v1.17.0
	github.com/cilium/ebpf v0.22.0
	github.com/goverbs/verbs v0.1.0
	golang.org/x/sys v0.49.0
	golang.org/x/term v0.47.0
)
