#!/usr/bin/env bash
# Checks the dependencies with `cargo deny` and deny.toml: sources, duplicates, bans, and known
# vulnerabilities. It installs nothing. Without cargo-deny, or without a database of vulnerabilities
# and a network to fetch it, it prints what is skipped.
set -u
cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit 1
PATH="$PATH:${CARGO_HOME:-${HOME:-}/.cargo}/bin"

if ! command -v cargo-deny >/dev/null 2>&1; then
    echo "SKIPPED: cargo deny: it is not installed (cargo install cargo-deny --locked)"
    exit 0
fi

# Succeeds if the database folder of cargo-deny contains an advisory.
has_advisories() {
    [ -n "$(find "${CARGO_HOME:-${HOME:-}/.cargo}"/advisory-db* -name 'RUSTSEC-*' -print -quit 2>/dev/null)" ]
}

log=$(mktemp "${TMPDIR:-/tmp}/dlock-deny.XXXXXX") || exit 1
trap 'rm -f "$log"' EXIT
failed=0

# Prints a line per duplicate, and the full output of a failure.
cargo deny --log-level warn --locked check bans sources >"$log" 2>&1 || failed=1
if [ "$failed" -eq 0 ]; then grep -E '^(warning|bans|sources)' "$log"; else cat "$log"; fi

# Without a database the check always passes, so it is skipped.
if ! cargo deny --log-level error --locked fetch db >"$log" 2>&1; then
    echo "SKIPPED: cargo deny: known vulnerabilities: their database cannot be fetched"
elif ! has_advisories; then
    echo "SKIPPED: cargo deny: known vulnerabilities: their database is missing or empty"
else
    cargo deny --log-level error --locked check --disable-fetch advisories || failed=1
fi
exit "$failed"
