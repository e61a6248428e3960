#!/bin/sh
# Builds kine, which stores Kubernetes' objects in SQL databases, for trying the proxy in front of
# API servers that use it in place of etcd:
#   ./build-kine.sh
#   REAL_BIN=.bin-kine go test -run '^TestAnswersConformToUpstream$' .
# The other programs are those of build.sh. Needs a C compiler, for SQLite.
set -eu
cd "$(dirname "$0")"
release=${1:-v0.17.5}
./build.sh
to=$PWD/.bin-kine
mkdir -p "$to"
cp .bin/etcd .bin/kube-apiserver .bin/kubectl .bin/cluster .bin/helm .bin/promql "$to/"
# A module with replacements cannot be installed by name. It is built where it was downloaded to.
cd "$(go mod download -json "github.com/k3s-io/kine@$release" | sed -n 's/.*"Dir": "\(.*\)".*/\1/p')"
exec go build -buildvcs=false -o "$to/kine" .
