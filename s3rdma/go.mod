module github.com/goverbs/verbs/s3rdma

go 1.26.0

require github.com/goverbs/verbs v0.1.0

require golang.org/x/sys v0.49.0 // indirect
