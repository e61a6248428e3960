#!/usr/bin/env bash
# Applies each patch here to a copy of the sources, builds it, and runs the test that the patch names. That test must
# fail, and it must pass without the patch. A patch that does not apply or does not compile is an error. Arguments name
# patches; without any, all are run.
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

# The words of "Caught by:" select targets of the build, and the last one names the test.
selection_of() { field 'Caught by' "$1" | sed 's/ [^ ]*$//'; }
test_of() { field 'Caught by' "$1" | sed 's/.* //'; }

copy
declare -A named=() passes=()
for name in "${names[@]}"; do
    patch=$top/tests/mutants/$name.patch
    named[$(selection_of "$patch")]+=" $(test_of "$patch")"
done
cd "$tree"
for selection in "${!named[@]}"; do
    read -ra build <<<"$selection"
    read -ra tests <<<"${named[$selection]}"
    log=$dir/unpatched${selection// /-}.log
    timeout 3600 cargo test --locked --workspace --no-fail-fast "${build[@]}" -- --exact --test-threads=1 "${tests[@]}" \
        >"$log" 2>"$log.errors" || true
    for wanted in "${tests[@]}"; do
        # What a test prints can stand before its result.
        if grep -qE "^test $wanted \.\.\. (.*[^[:alnum:]])?ok$" "$log"; then
            passes[$wanted]=1
        fi
    done
done

caught=0 failed=()
for name in "${names[@]}"; do
    patch=$top/tests/mutants/$name.patch
    wanted=$(test_of "$patch")
    if [[ -z ${passes[$wanted]:-} ]]; then
        echo "ERROR   $name: $wanted does not pass without the patch, see $dir/unpatched*.log"
        failed+=("$name")
        continue
    fi
    read -ra build <<<"$(selection_of "$patch")"
    log=$dir/$name.log
    git apply "$patch"
    if ! cargo test --locked --quiet --workspace "${build[@]}" --no-run >"$log" 2>&1; then
        echo "ERROR   $name: does not compile, see $log"
        failed+=("$name")
    elif timeout 900 cargo test --locked --workspace "${build[@]}" -- --exact "$wanted" >"$log" 2>&1; then
        if grep -qE '^running [1-9]' "$log"; then
            echo "MISSED  $name"
        else
            echo "ERROR   $name: 0 tests ran, see $log"
        fi
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
done
echo "$caught of ${#names[@]} broken builds were caught"
[[ ${#failed[@]} -eq 0 ]]
