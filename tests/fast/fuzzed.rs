//! Every file of the fuzz targets' committed corpora, through what the fuzzers run: old findings
//! stay found, on stable.

use std::path::Path;
use support::fuzz_targets as targets;

fn each(target: &str, run: fn(&[u8])) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/corpus").join(target);
    let mut inputs = 0;
    for entry in std::fs::read_dir(&folder).expect("a corpus") {
        let path = entry.expect("an entry").path();
        let data = std::fs::read(&path).expect("readable");
        if let Err(panic) = std::panic::catch_unwind(|| run(&data)) {
            eprintln!("the input is {}", path.display());
            std::panic::resume_unwind(panic);
        }
        inputs += 1;
    }
    assert!(inputs >= 5, "the corpus of {target} has {inputs} inputs");
}

#[test]
fn correlation_ids() {
    each("correlation_ids", targets::correlation_ids::run);
}

#[test]
fn fan_outs() {
    each("fan_outs", targets::fan_outs::run);
}

#[test]
fn frames() {
    each("frames", targets::frames::run);
}

#[test]
fn http_requests() {
    each("http_requests", targets::http_requests::run);
}

#[test]
fn journal_rows() {
    each("journal_rows", targets::journal_rows::run);
}

#[test]
fn replies() {
    each("replies", targets::replies::run);
}

#[test]
fn workflow_files() {
    each("workflow_files", targets::workflow_files::run);
}
