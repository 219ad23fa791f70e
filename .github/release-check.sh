#!/usr/bin/env bash
# Checks what make release has built from the commit that is checked out, and the module as users will get it:
# from a proxy, here a folder. make release-check runs it.
set -euo pipefail
go=${GO:-go}
module=github.com/goverbs/verbs
name=$(sed -n 's/^const Version = "\(.*\)"$/\1/p' version.go) # 0.1.0, or 0.1.0-dev before the release
version=v${name%-dev}
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
export CGO_ENABLED=0 GOWORK=off GOFLAGS=-modcacherw

echo "== artifacts of $version"
(cd build/release && sha256sum --check --quiet SHA256SUMS)
arch=$($go env GOARCH)
build/release/verbs-linux-"$arch" --version | tee "$tmp/version"
grep -q "^verbs $name, go.*, linux/$arch$" "$tmp/version"
for f in build/release/verbs-* build/release/rdmalab-*; do
	case $f in *.json) continue ;; esac
	$go version -m "$f" >"$tmp/info"
	grep -q 'CGO_ENABLED=0$' "$tmp/info" && grep -q -- '-trimpath=true$' "$tmp/info" || { echo "$f is built otherwise" >&2; exit 1; }
	awk -v own="$module" '$1 == "dep" && index($2, own) != 1 { print "== " $2 }' "$tmp/info"
done | sort -u >"$tmp/parts"
printf '%s\n' "== Go" "== include/linux/mlx5 of Linux" " * Copyright (c) 2013-2015, Mellanox Technologies, Ltd.  All rights reserved." >>"$tmp/parts"
if grep -vxFf build/release/NOTICE "$tmp/parts"; then
	echo "NOTICE lacks these licences"
	exit 1
fi
cmp LICENSE build/release/LICENSE
grep -qx 'COPY LICENSE NOTICE /' .github/Dockerfile

echo "== built again elsewhere, from nothing"
mkdir "$tmp/src"
git archive HEAD | tar x -C "$tmp/src"
(cd "$tmp/src" && GOCACHE=$tmp/cache make -s release GO="$go" SBOM=)
(cd build/release && grep -v '\.json$' SHA256SUMS) | diff - "$tmp/src/build/release/SHA256SUMS" || { echo "commit your changes, or the build is not reproducible"; exit 1; }

# zip puts a module, or one in a folder, into the proxy. A module's archive lacks the modules in its folders.
zip() {
	local path=$module${1:+/$1} dir=$tmp/proxy/$module${1:+/$1}/@v
	mkdir -p "$dir"
	git show "HEAD:${1:+$1/}go.mod" >"$dir/$version.mod"
	echo "{\"Version\":\"$version\"}" >"$dir/$version.info"
	echo "$version" >"$dir/list"
	local inner=()
	for m in $(git ls-files '*/go.mod'); do
		[ "$m" = "${1:+$1/}go.mod" ] || inner+=(":!$(dirname "$m")")
	done
	git archive --format zip --prefix "$path@$version/" -o "$dir/$version.zip" "HEAD${1:+:$1}" -- . $([ "$1" ] || printf '%s\n' "${inner[@]}")
	[ -z "$1" ] || return 0
}
zip ""
for m in cmd/verbs exporter lab s3rdma; do zip $m; done
GOPROXY="file://$tmp/proxy,file://$($go env GOMODCACHE)/cache/download,$($go env GOPROXY)"
export GOPROXY GOMODCACHE="$tmp/mod" GONOSUMDB=$module GOTOOLCHAIN=local

for p in cmd/verbs lab/rdmalab exporter/cmd/verbs-exporter; do
	echo "== go install $module/$p@$version"
	GOBIN=$tmp/bin $go install $module/$p@"$version"
done
"$tmp/bin/rdmalab" --help >"$tmp/help" 2>&1
"$tmp/bin/verbs-exporter" --help >>"$tmp/help" 2>&1
"$tmp/bin/verbs" --version | tee "$tmp/version"
grep -q "^verbs $name," "$tmp/version"

# sums makes a program that imports a package of a module, and prints what its go.sum names.
sums() {
	mkdir -p "$tmp/$2" && cd "$tmp/$2"
	printf 'package main\n\nimport _ "%s"\n\nfunc main() {}\n' "$1" >main.go
	$go mod init example.com/"$2" 2>/dev/null
	$go mod edit -require "$3@$version"
	$go mod tidy
	$go build .
	cut -d ' ' -f 1 go.sum | sort -u
}
echo "== what an importer of rsock depends on"
(sums $module/rsock importer $module) | tee "$tmp/sums"
printf '%s\n' $module golang.org/x/sys | diff - "$tmp/sums"

echo "== what an importer of s3rdma depends on"
(sums $module/s3rdma objects $module/s3rdma) | tee "$tmp/sums"
printf '%s\n' $module $module/s3rdma golang.org/x/sys | diff - "$tmp/sums"

echo "== a program with older modules keeps them"
mkdir "$tmp/older" && cd "$tmp/older"
printf 'package main\n\nimport (\n\t_ "github.com/alecthomas/kong"\n\t_ "github.com/cilium/ebpf"\n)\n\nfunc main() {}\n' >main.go
$go mod init example.com/older 2>/dev/null
$go mod edit -require github.com/cilium/ebpf@v0.19.0 -require github.com/alecthomas/kong@v1.12.0
$go mod tidy
sed 's/^import (/&\n\t_ "github.com\/goverbs\/verbs\/rsock"/' -i main.go
$go mod edit -require $module@"$version"
$go mod tidy
$go build .
$go list -m all | grep -E '^github.com/(cilium/ebpf v0.19.0|alecthomas/kong v1.12.0)$' | tee "$tmp/kept"
[ "$(wc -l <"$tmp/kept")" = 2 ] || { cat go.mod; exit 1; }
cd "$OLDPWD"

echo "== an importer of the exporter"
(sums $module/exporter metrics $module/exporter) >"$tmp/sums"
echo "all is well"
