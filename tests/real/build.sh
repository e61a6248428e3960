#!/bin/sh
# Builds kube-apiserver, etcd, kubectl and the cluster harness into .bin/.
# Go's build cache makes a repeated run a matter of seconds.
set -eu
cd "$(dirname "$0")"

# The version is stamped at link time. Without it the programs call themselves
# v0.0.0-master, and clients that compare versions refuse to talk to them.
KUBE=v1.37.1
minor=${KUBE#v1.}
minor=${minor%%.*}
ldflags="-s -w"
for var in \
	k8s.io/component-base/version.gitVersion=$KUBE \
	k8s.io/component-base/version.gitMajor=1 \
	k8s.io/component-base/version.gitMinor="$minor" \
	k8s.io/client-go/pkg/version.gitVersion=$KUBE; do
	ldflags="$ldflags -X $var"
done

# No version control stamp: it would relink everything after each commit. And no
# -trimpath: packages built with it are not the ones that go test and go vet
# find in the cache, and half of Kubernetes would be compiled twice.
mkdir -p .bin
exec go build -buildvcs=false -ldflags "$ldflags" -o .bin/ ./cmd/...
