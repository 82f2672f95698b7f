//! Texts made of random pieces.

use proptest::prelude::*;
use workflow_manager::load::{LoadErrors, load_text};

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 512,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    /// Whatever the text, loading ends with definitions or with problems that have a place in the
    /// text, in order.
    #[test]
    fn any_text_is_loaded_or_refused(
        pieces in prop::collection::vec(prop::sample::select(PIECES), 0..60)
    ) {
        let text = pieces.concat();
        if let Err(LoadErrors(problems)) = load_text("f", &text) {
            prop_assert!(!problems.is_empty());
            prop_assert!(problems.is_sorted_by_key(|problem| (problem.line, problem.column)));
            let lines = text.split('\n').count();
            for problem in problems {
                prop_assert!(
                    problem.line >= 1 && problem.line <= lines + 1 && problem.column >= 1,
                    "{problem}"
                );
            }
        }
    }
}

/// What random files are made of.
const PIECES: &[&str] = &[
    "workflows:",
    "\n- ",
    "\n  - ",
    "\n    ",
    "\n      - ",
    " ",
    "\n",
    "name: ",
    "steps:",
    "tasks: ",
    "depends: ",
    "task: ",
    "queue: ",
    "vhosts: ",
    "itemListKey: ",
    "priority: ",
    "when: ",
    "retry: ",
    "timeout: ",
    "statuses: ",
    "external: true",
    "steps.a.state == 'b'",
    "30s",
    "a",
    "b",
    "c",
    "[ ",
    " ]",
    "{ ",
    " }",
    ", ",
    ": ",
    "&x ",
    "*x",
    "<<: ",
    "? ",
    "!t ",
    "!!str ",
    "'",
    "\"",
    "#",
    "---\n",
    "|\n",
    "\t",
    "1",
    "yes",
    "~",
    "ä",
    "__start__",
    "__end__",
    "x-",
    "\\",
    "%YAML 1.2\n",
    "workflows: [ { name: a, steps: [ { name: b }, { name: c, depends: [ b ] } ] } ]",
    "{ name: a, depends: [ b ] }, ",
    "{ name: b, depends: [ a ] }, ",
];
