#!/bin/sh
# Builds kube-apiserver of another release, for trying the proxy in front of it:
#   ./build-release.sh v1.33.6
#   REAL_BIN=.bin-v1.33.6 go test .
# The other programs are those of build.sh. Takes some ten minutes the first time. Where a checksum
# database lacks old modules, set GONOSUMDB=k8s.io.
set -eu
cd "$(dirname "$0")"
release=${1:?usage: build-release.sh vX.Y.Z}
staging=v0.${release#v1.}
./build.sh
to=$PWD/.bin-$release
mkdir -p "$to/module"
cp .bin/etcd .bin/kubectl .bin/cluster "$to/"
cp cmd/kube-apiserver/main.go "$to/module/"
cd "$to/module"
# Kubernetes replaces its staging modules in its own tree; outside of it each has its real version.
source=$(go mod download -json "k8s.io/kubernetes@$release" | sed -n 's/.*"GoMod": "\(.*\)".*/\1/p')
{
	echo "module watershed.test/release"
	echo "go 1.24.0"
	echo "require k8s.io/kubernetes $release"
	sed -n 's|^\t*\(k8s\.io/[a-z-]*\) => \./staging.*|\1|p' "$source" | while read -r module; do
		echo "replace $module => $module $staging"
	done
} >go.mod
# Not go mod tidy: that wants what only Kubernetes' own tests need.
minor=${release#v1.}
version=k8s.io/component-base/version
exec go build -mod=mod -buildvcs=false -o "$to/kube-apiserver" -ldflags "-s -w -X $version.gitVersion=$release \
	-X $version.gitMajor=1 -X $version.gitMinor=${minor%%.*}" .
