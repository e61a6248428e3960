#!/usr/bin/env bash
# Measures upstream's cost by the number of clients, with the proxy and without. It runs a real kube-apiserver with
# the proxy in front, and puts the same load on both in turn, with more watches each time. See docs/experiments.md.
#
#   WATERSHED  the program that puts load on both and draws (target/release/watershed)
#   PROXY      the program under load, as it is shipped (target/dist/watershed)
#   OUT        the directory for results (target/lab)
#   WATCHES    the number of watches in each step ("25 50 100 200 400")
#   LOAD       further flags of watershed load ("--write-rate 20/s --duration 20s --rounds 3")
set -euo pipefail
cd "$(dirname "$0")/../.."
program=${WATERSHED:-target/release/watershed}
proxy=${PROXY:-target/dist/watershed}
out=${OUT:-target/lab}
watches=${WATCHES:-25 50 100 200 400}
load=${LOAD:---write-rate 20/s --duration 20s --rounds 3}
mkdir -p "$out"

# The cluster stops, with all its processes, when its standard input ends.
coproc cluster { tests/real/.bin/cluster --proxy "$proxy" 2>"$out/cluster.log"; }
exec 3>&"${cluster[1]}"
read -r -t 300 ready <&"${cluster[0]}" || { echo "the cluster did not start: see $out/cluster.log" >&2; exit 1; }
text() { sed -n "s/.*\"$1\":\"\([^\"]*\)\".*/\1/p" <<<"$ready"; }
pid() { sed -n "s/.*\"$1\":\([0-9]*\).*/\1/p" <<<"$ready"; }

results=()
for count in $watches; do
    echo "== $count watches"
    # shellcheck disable=SC2086 # several flags
    "$program" load --compare "direct=$(text kubeconfig),proxy=$(text kubeconfig_via_proxy)" \
        --pid "kube-apiserver=$(pid apiserver-0)" --pid "watershed=$(pid watershed)" \
        --watches "$count" $load --out "$out/$count" ||
        echo "the run with $count watches is not clean" >&2
    results+=("$out/$count/result.json")
done
exec 3>&-
"$program" plot --out "$out/clients.svg" "${results[@]}"
