# Shorter ways to the project's own commands; CONTRIBUTING.md says what they are for.

features := "failpoints,kafka"

# Lists these.
default:
    @just --list

# While you write: compiles everything, with the linter's warnings as errors.
check:
    cargo fmt --check
    cargo clippy --locked --workspace --all-targets --all-features -- -D warnings
    cargo clippy --locked -p workflow-manager --all-features --test slow -- -D warnings

# All tests that need no server.
test *NAMES:
    INSTA_UPDATE=no cargo test --locked --workspace --features {{features}} --lib --test fast {{NAMES}}

# Before you hand in: what CI runs.
verify *STAGES:
    tests/run {{STAGES}}

# Writes the pages of docs/reference that are made from the program: commands, and calls of the API.
references:
    RENEW_REFERENCES=1 cargo test --locked --workspace --features {{features}} --test fast references
