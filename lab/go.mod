module github.com/goverbs/verbs/lab

go 1.26.0

require (
	github.com/ProtonMail/go-crypto v1.5.2
	github.com/cavaliergopher/cpio v1.0.1
	github.com/goverbs/verbs v0.1.0
	golang.org/x/sys v0.49.0
	pault.ag/go/debian v0.21.4
)

require (
	github.com/cloudflare/circl v1.6.5 // indirect
	golang.org/x/crypto v0.58.0 // indirect
	pault.ag/go/topsort v0.1.1 // indirect
)
