#!/usr/bin/env bash
# Builds the programs of a release into build/release, without C: verbs for all systems, and the lab and the exporter
# for Linux. An SBOM lists the modules of each binary, unless SBOM is empty. make release runs it.
set -euo pipefail
go=${GO:-go} version=$(sed -n 's/^const Version = "\(.*\)"$/\1/p' version.go)
out=$PWD/build/release mod=$PWD/build/mod
rm -rf "$out"
mkdir -p "$out"
.github/modules.sh
export GOWORK=off CGO_ENABLED=0

# program builds a package of a module in a folder.
program() {
	(cd "$2" && $go build -trimpath -buildvcs=false -ldflags='-s -w' -o "$out/$1-$GOOS-$GOARCH${ext-}" -modfile "$mod/${2//\//-}.mod" "$3")
}
for p in linux/amd64 linux/arm64 darwin/arm64 windows/amd64; do
	export GOOS=${p%/*} GOARCH=${p#*/} ext=
	[ $GOOS != windows ] || ext=.exe
	echo "$p"
	program verbs cmd/verbs .
	[ $GOOS = linux ] || continue
	program rdmalab lab ./rdmalab
	program verbs-exporter exporter ./cmd/verbs-exporter
done
unset GOOS GOARCH
if [ "${SBOM-yes}" ]; then
	for f in "$out"/*-linux-*; do
		$go run github.com/CycloneDX/cyclonedx-gomod/cmd/cyclonedx-gomod@v1.10.0 bin -json -noserial -notimestamp -std -version "v$version" -output "$f.cdx.json" "$f"
	done
fi
cd "$out"
sha256sum -- * >SHA256SUMS
