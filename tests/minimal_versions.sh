#!/usr/bin/env bash
# Checks that the packages users depend on compile with the lowest versions that their manifests
# allow for direct dependencies.
#
# It resolves a copy of the workspace that has only these packages, without their development
# dependencies, so Cargo.lock does not change. The flag of cargo is unstable: RUSTC_BOOTSTRAP makes
# the pinned compiler accept it. Without a network, it prints why it is skipped.
set -u
cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit 1
PATH="$PATH:${CARGO_HOME:-${HOME:-}/.cargo}/bin"

PACKAGES=(dlock-calendar dlock-macros dlock-runtime dlock-cli)
target=${CARGO_TARGET_DIR:-$PWD/target}/minimal-versions
copy=$(mktemp -d "${TMPDIR:-/tmp}/dlock-minimal.XXXXXX") || exit 1
trap 'rm -rf "$copy"' EXIT

git ls-files -z "${PACKAGES[@]}" Cargo.toml rust-toolchain.toml | xargs -0 cp --parents -t "$copy" || exit 1
cd "$copy" || exit 1
members=$(printf '"%s", ' "${PACKAGES[@]}")
sed -i "s/^members = .*/members = [${members%, }]/; s/^exclude = .*/exclude = []/" Cargo.toml
for package in "${PACKAGES[@]}"; do
    sed -i '/^\[dev-dependencies\]/,/^$/d' "$package/Cargo.toml"
done

if ! RUSTC_BOOTSTRAP=1 cargo update --quiet -Z direct-minimal-versions 2>update.log; then
    if grep -qE 'failed to (download|fetch|get)|Could not (resolve|connect)|network failure' update.log; then
        echo "SKIPPED: direct minimal versions: the package registry cannot be reached"
        exit 0
    fi
    cat update.log >&2
    exit 1
fi
export CARGO_TARGET_DIR=$target
cargo check --quiet --locked --workspace --all-features
