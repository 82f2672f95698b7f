//! What shells complete, and manual pages.

use crate::harness::{command, must_succeed, run};
use std::fs;
use std::process::Command;

#[test]
fn shells_complete_commands_and_options() {
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let script = run(command().args(["completions", shell]));
        assert_eq!(script.code, Some(0), "{script}");
        for word in ["doctor", "context", "unattended"] {
            assert!(script.stdout.contains(word), "{shell}: no {word}");
        }
    }
    let wrong = run(command().args(["completions", "cmd"]));
    assert!(wrong.code == Some(2) && wrong.stderr.contains("bash"), "{wrong}");
    // A real shell: what follows `workflow-manager qu`, and `search -o j`.
    let program = env!("CARGO_BIN_EXE_workflow-manager");
    let complete = |words: &str| {
        let text = format!(
            "eval \"$({program} completions bash)\"; COMP_WORDS=({words}); \
             COMP_CWORD=$((${{#COMP_WORDS[@]}}-1)); \
             _workflow__manager workflow-manager \"${{COMP_WORDS[COMP_CWORD]}}\" \
             \"${{COMP_WORDS[COMP_CWORD-1]}}\"; \
             echo \"${{COMPREPLY[@]}}\""
        );
        let output = must_succeed(Command::new("bash").args(["-c", &text]));
        String::from_utf8(output.stdout).unwrap().trim().to_owned()
    };
    assert_eq!(complete("workflow-manager qu"), "queues");
    assert_eq!(complete("workflow-manager search -o j"), "json jsonl");
}

#[test]
fn there_is_a_manual_page_for_each_command() {
    let dir = tempfile::tempdir().unwrap();
    let pages = dir.path().join("man/man1");
    let ran = run(command().arg("man").arg(&pages));
    assert_eq!(ran.code, Some(0), "{ran}");
    for name in ["", "-run", "-wait", "-context-add", "-doctor"] {
        let page = fs::read_to_string(pages.join(format!("workflow-manager{name}.1"))).unwrap();
        assert!(page.starts_with(".") && page.contains(".SH NAME"), "{name}: {page}");
    }
    let wait = fs::read_to_string(pages.join("workflow-manager-wait.1")).unwrap();
    assert!(wait.contains("the time is over"), "the exit codes are told: {wait}");
    let refused = run(command().args(["man", "/proc/nowhere"]));
    assert!(refused.code == Some(1) && refused.stderr.contains("/proc/nowhere"), "{refused}");
}
