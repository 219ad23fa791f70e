module github.com/goverbs/verbs/tests/bench/cgo

go 1.26.0
