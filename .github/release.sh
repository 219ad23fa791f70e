#!/usr/bin/env bash
# Builds the programs of a release into build/release, without C: verbs for all systems, and the lab and the exporter
# for Linux. NOTICE has the licences of what they consist of. An SBOM lists the modules of each binary, unless SBOM is empty. make release runs it.
set -euo pipefail
go=${GO:-go} version=$(sed -n 's/^const Version = "\(.*\)"$/\1/p' version.go)
out=$PWD/build/release mod=$PWD/build/mod
rm -rf "$out"
mkdir -p "$out"
.github/modules.sh
export GOWORK=off CGO_ENABLED=0

# program builds a package of a module in a folder, and notes the folders of the modules of others in it.
program() {
	local file=$mod/${2//\//-}.mod
	(cd "$2" && $go build -trimpath -buildvcs=false -ldflags='-s -w' -o "$out/$1-$GOOS-$GOARCH${ext-}" -modfile "$file" "$3" &&
		$go list -deps -modfile "$file" -f '{{with .Module}}{{if not (or .Main .Replace)}}{{.Path}} {{.Dir}}{{end}}{{end}}' "$3" >>"$mod/parts")
}

# notice prints the licences of the kernel's headers that the lab has layouts of, of Go, and of modules.
notice() {
	echo "== include/linux/mlx5 of Linux"
	sed -n '\|^/\*$|,\|^ \*/$|p' lab/connectx/internal/ifc/zifc.go
	echo "== Go"
	cat "$($go env GOROOT)/LICENSE"
	LC_ALL=C sort -u "$mod/parts" | while read -r path dir; do
		echo "== $path"
		(cd "$dir" && ls | grep -E '^(LICENSE|COPYING|NOTICE)' | xargs cat; echo) # as some end without a newline
	done
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
cp LICENSE "$out"
notice >"$out/NOTICE"
if [ "${SBOM-yes}" ]; then
	for f in "$out"/*-linux-*; do
		$go run github.com/CycloneDX/cyclonedx-gomod/cmd/cyclonedx-gomod@v1.10.0 bin -json -noserial -notimestamp -std -version "v$version" -output "$f.cdx.json" "$f"
	done
fi
cd "$out"
sha256sum -- * >SHA256SUMS
