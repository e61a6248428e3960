#!/bin/sh
# Builds kube-apiserver, etcd, kubectl and the cluster harness into .bin/, and
# helm and a reader of PromQL. With the argument controlplane also the
# controller manager and the scheduler, with e2e those and Kubernetes' own
# end-to-end tests of the API. Both take minutes more.
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
go build -buildvcs=false -ldflags "$ldflags" -o .bin/ ./cmd/...
case "${1-}" in controlplane | e2e)
	(cd controlplane && go build -buildvcs=false -ldflags "$ldflags" -o ../.bin/ ./...)
	;;
esac
if [ "${1-}" = e2e ]; then
	(cd e2e && go test -c -buildvcs=false -ldflags "$ldflags" -o ../.bin/e2e.test .)
fi

# Helm takes the cluster it has not seen for one of this version.
for var in \
	helm.sh/helm/v3/pkg/chartutil.k8sVersionMajor=1 \
	helm.sh/helm/v3/pkg/chartutil.k8sVersionMinor="$minor" \
	helm.sh/helm/v3/pkg/lint/rules.k8sVersionMajor=1 \
	helm.sh/helm/v3/pkg/lint/rules.k8sVersionMinor="$minor"; do
	ldflags="$ldflags -X $var"
done
cd tools
exec go build -buildvcs=false -ldflags "$ldflags" -o ../.bin/ helm.sh/helm/v3/cmd/helm ./promql
