#!/bin/sh
# Checks the format, the modules and the code. make lint runs it, and vets for other platforms.
set -ex
go=${GO:-go}
unformatted=$(find . -path ./build -prune -o -type f -name '*.go' -exec gofmt -l {} +)
test -z "$unformatted"
.github/modules.sh -diff
$go vet work
$go vet -overlay tests/bench/native/testdata/overlay.json ./provider ./tests/bench/native
$go tool staticcheck work
if curl -sSfm 10 -o /dev/null https://vuln.go.dev/index/db.json; then
	$go run golang.org/x/vuln/cmd/govulncheck@latest work
else
	echo "govulncheck skipped: its database cannot be reached"
fi
