#!/usr/bin/env bash
# What `cargo deny` says of the dependencies, by deny.toml: where they come from, doubles, what is banned, and known weaknesses. It
# installs nothing: without cargo-deny, or without a database of weaknesses at hand and a network to fetch it by, it says what is skipped.
set -u
cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit 1
PATH="$PATH:${CARGO_HOME:-${HOME:-}/.cargo}/bin"

if ! command -v cargo-deny >/dev/null 2>&1; then
    echo "SKIPPED: cargo deny: it is not installed (cargo install cargo-deny --locked)"
    exit 0
fi

# Returns whether the folder in which cargo-deny keeps the database has an advisory.
has_advisories() {
    [ -n "$(find "${CARGO_HOME:-${HOME:-}/.cargo}"/advisory-db* -name 'RUSTSEC-*' -print -quit 2>/dev/null)" ]
}

log=$(mktemp "${TMPDIR:-/tmp}/dlock-deny.XXXXXX") || exit 1
trap 'rm -f "$log"' EXIT
failed=0

# Doubles in a line each; what fails, with all that there is to say.
cargo deny --log-level warn --locked check bans sources >"$log" 2>&1 || failed=1
if [ "$failed" -eq 0 ]; then grep -E '^(warning|bans|sources)' "$log"; else cat "$log"; fi

# Without a database nothing can be found, so a check that passes would say nothing.
if ! cargo deny --log-level error --locked fetch db >"$log" 2>&1; then
    echo "SKIPPED: cargo deny: known weaknesses: their database cannot be fetched"
elif ! has_advisories; then
    echo "SKIPPED: cargo deny: known weaknesses: their database is missing or empty"
else
    cargo deny --log-level error --locked check --disable-fetch advisories || failed=1
fi
exit "$failed"
