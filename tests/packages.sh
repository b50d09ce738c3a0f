#!/usr/bin/env bash
# Checks the packages for a release: what each contains and says about itself, and that all four can
# be published in their order. Without network, it prints what it skips.
set -u
cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit 1
failed=0

# Prints a problem, and continues.
problem() {
    echo "says: packages: $1"
    failed=1
}

for package in dlock-calendar dlock-macros dlock-runtime dlock-cli; do
    files=$(cargo package --list --allow-dirty -q -p "$package") || { problem "$package cannot be listed"; continue; }
    for file in Cargo.toml README.md LICENSE-MIT LICENSE-APACHE; do
        grep -qx "$file" <<<"$files" || problem "$package lacks $file"
    done
    for field in license.workspace readme keywords categories description; do
        grep -q "^$field = " "$package/Cargo.toml" || problem "$package has no $field"
    done
    tests=$(grep -E '(^|/)(tests|simulation|exhaustive|interleavings|schedules)(/|\.rs$)' <<<"$files")
    [ -z "$tests" ] || problem "$package contains tests: $(tr '\n' ' ' <<<"$tests")"
    echo "$package: $(wc -l <<<"$files") files"
done

# cargo keeps what it unpacked and built in the last run, under the same names and versions. It does
# not see that a package has changed: all files in it have one fixed time, and it does not record
# the sources of what comes from a registry.
target=${CARGO_TARGET_DIR:-target}
rm -rf "$target/package"
rm -rf "${CARGO_HOME:-${HOME:-}/.cargo}"/registry/{src,cache}/*/dlock-{calendar,macros,runtime,cli}-[0-9]*
built=("$target"/debug/.fingerprint/dlock-{calendar,macros,runtime,cli}-*/dep-*)
{
    grep -la 'package/dlock-' "${built[@]}"
    grep -La 'src/' "${built[@]}"
} 2>/dev/null | xargs -r dirname | xargs -r rm -rf

# Builds each package from its files alone, against the packages before it.
if output=$(cargo publish --workspace --dry-run --allow-dirty 2>&1); then
    grep -E 'Packaged|warning: aborting upload' <<<"$output"
elif grep -qiE 'could not resolve|failed to (download|fetch)|network|connect|offline|timed out' <<<"$output"; then
    echo "SKIPPED: publishing the packages: the registry cannot be reached"
else
    echo "$output" | tail -40
    problem "the packages cannot be published"
fi
exit "$failed"
