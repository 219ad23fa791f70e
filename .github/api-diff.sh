#!/bin/sh
# api-diff.sh COMMIT lists how the API of the library differs from that of the commit, into build/api.txt.
set -e
export GOWORK=off
apidiff="${GO:-go} run golang.org/x/exp/cmd/apidiff@v0.0.0-20261113113407-e3970619a1a4 -m"
mkdir -p build
rm -rf build/base
git worktree prune
git worktree add -q --detach build/base "$1"
(cd build/base && $apidiff -w ../base.api github.com/goverbs/verbs)
git worktree remove --force build/base
$apidiff build/base.api github.com/goverbs/verbs >build/api.txt
cat build/api.txt
