module example.com/driver

go 1.26.0

require github.com/goverbs/verbs v0.0.0

require golang.org/x/sys v0.49.0 // indirect

replace github.com/goverbs/verbs => ../..
