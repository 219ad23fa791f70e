module github.com/goverbs/verbs/gen

go 1.26.0

require (
	github.com/cilium/ebpf v0.22.0
	github.com/google/go-cmp v0.7.0
	github.com/goverbs/verbs v0.1.0
	github.com/goverbs/verbs/lab v0.1.0
)

require (
	github.com/ProtonMail/go-crypto v1.5.2 // indirect
	github.com/cloudflare/circl v1.6.5 // indirect
	golang.org/x/crypto v0.58.0 // indirect
	golang.org/x/sys v0.49.0 // indirect
	pault.ag/go/debian v0.21.4 // indirect
	pault.ag/go/topsort v0.1.1 // indirect
)
