#!/usr/bin/env bash
# Writes go.mod and go.sum of each module of go.work to build/mod/DIR.mod and .sum, with the modules of this
# checkout in place of released ones: for builds without the workspace, by -modfile. The go.mod files
# themselves have no replace directives, with which go install would refuse them. With -tidy, it runs go mod tidy
# on all modules, and on tests/driver, which go.work does not have; with -diff, it fails where that would change something.
set -euo pipefail
cd "$(dirname "$0")/.."
go=${GO:-go}
mkdir -p build/mod
rm -f build/mod/*
dirs=$(sed -n 's|^\t\(\.[^ ]*\)$|\1|p' go.work)
for dir in $dirs; do
	name=${dir#./}
	[ "$name" != . ] || name=library
	mod=$PWD/build/mod/${name//\//-}.mod sum=$PWD/build/mod/${name//\//-}.sum
	cp "$dir/go.mod" "$mod"
	cp "$dir/go.sum" "$sum"
	replace=() drop=()
	for other in $dirs; do
		path=$(sed -n 's/^module //p' "$other/go.mod")
		drop+=(-dropreplace "$path")
		[ "$other" = "$dir" ] || replace+=(-replace "$path=./$(realpath --relative-to "$dir" "$other")")
	done
	$go mod edit "${replace[@]}" "$mod"
	case ${1-} in
	-diff) (cd "$dir" && GOWORK=off $go mod tidy -diff -modfile="$mod") ;;
	-tidy)
		(cd "$dir" && GOWORK=off $go mod tidy -modfile="$mod")
		cp "$sum" "$dir/go.sum"
		cp "$mod" "$dir/go.mod"
		$go mod edit "${drop[@]}" "$dir/go.mod"
		;;
	esac
done
case ${1-} in
-diff) (cd tests/driver && GOWORK=off $go mod tidy -diff) ;;
-tidy) (cd tests/driver && GOWORK=off $go mod tidy) ;;
esac
