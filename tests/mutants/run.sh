#!/usr/bin/env bash
# Applies each patch here to a copy of the sources, builds it, and runs the test that the patch names. That test must
# fail. A patch that does not apply or does not compile is an error. Arguments name patches; without any, all are run.
#
# The copy and its build are in target/mutants (MUTANTS_DIR=), and are kept for the next run.
set -euo pipefail
cd "$(dirname "$0")/../.."
top=$PWD
dir=${MUTANTS_DIR:-$top/target/mutants}
tree=$dir/tree
export CARGO_TARGET_DIR=${MUTANTS_TARGET:-$dir/target} CARGO_INCREMENTAL=1
# Outside of any repository, so that `git apply` takes paths as they are.
export GIT_CEILING_DIRECTORIES=$dir
mkdir -p "$tree"

# Only files that changed are written, so that cargo builds no more than it must.
copy() {
    git -C "$top" ls-files -z | while IFS= read -r -d '' file; do
        [[ -f $top/$file || -L $top/$file ]] || continue
        [[ -L $tree/$file ]] || cmp -s "$top/$file" "$tree/$file" && continue
        [[ -d $tree/${file%/*} || $file != */* ]] || mkdir -p "$tree/${file%/*}"
        cp -P "$top/$file" "$tree/$file"
    done
}

field() { sed -n "s/^$1: //p" "$2"; }

names=("$@")
if [[ ${#names[@]} -eq 0 ]]; then
    for patch in tests/mutants/*.patch; do
        names+=("$(basename "$patch" .patch)")
    done
fi

copy
caught=0 failed=()
for name in "${names[@]}"; do
    patch=$top/tests/mutants/$name.patch
    cd "$tree"
    git apply "$patch"
    read -ra test <<<"$(field 'Caught by' "$patch")"
    log=$dir/$name.log
    # The last word names the test.
    build=("${test[@]:0:${#test[@]}-1}") wanted=${test[-1]}
    if ! cargo test --locked --quiet --workspace "${build[@]}" --no-run >"$log" 2>&1; then
        echo "ERROR   $name: does not compile, see $log"
        failed+=("$name")
    elif timeout 900 cargo test --locked --workspace "${test[@]}" >"$log" 2>&1; then
        echo "MISSED  $name"
        failed+=("$name")
    # loom aborts the process when destructors meet a model that has failed: then there is no summary.
    elif ! grep -q "^thread '$wanted' .*panicked at" "$log"; then
        echo "ERROR   $name: $wanted did not fail, see $log"
        failed+=("$name")
    else
        echo "caught  $name by $wanted"
        caught=$((caught + 1))
    fi
    git apply --reverse "$patch"
    cd "$top"
done
echo "$caught of ${#names[@]} broken builds were caught"
[[ ${#failed[@]} -eq 0 ]]
