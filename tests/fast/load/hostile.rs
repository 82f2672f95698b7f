//! Files that are made to exhaust whoever reads them are refused in bounded time.

use std::io::Write;
use std::path::PathBuf;
use std::time::{Duration, Instant};
use workflow_manager::load::{FILE_BYTES_MAX, load_files, load_text};

/// How long the refusal of a hostile file may take: a second. An unoptimised build gets longer, as
/// other tests run beside it.
const REFUSAL_TIME_MAX: Duration = Duration::from_secs(if cfg!(debug_assertions) { 5 } else { 1 });

#[test]
#[allow(clippy::too_many_lines, reason = "one list of files")]
fn hostile_files_are_refused_in_bounded_time() {
    let laughs = (1..10).fold(
        "x-0: &a0 [ ha, ha, ha, ha, ha, ha, ha, ha, ha, ha ]\n".to_owned(),
        |text, at| {
            let aliases = vec![format!("*a{}", at - 1); 10].join(", ");
            format!("{text}x-{at}: &a{at} [ {aliases} ]\n")
        },
    );
    let bomb = format!("{laughs}workflows: *a9\n");
    let quadratic = format!(
        "x-a: &a [ {} ]\nworkflows: [ {} ]\n",
        vec!["x"; 1_000].join(", "),
        vec!["*a"; 1_000].join(", ")
    );
    let misspelt = format!(
        "workflows: [ {{ name: w, steps: [ {}, {{ name: z, depends: [ {} ] }} ] }} ]",
        (0..900)
            .map(|at| format!("{{ name: a-rather-long-name-of-a-step-{at} }}"))
            .collect::<Vec<String>>()
            .join(", "),
        (0..20_000)
            .map(|at| format!("a-rather-long-name-of-a-stp-{at}"))
            .collect::<Vec<String>>()
            .join(", "),
    );
    let conditions = (0..1_000)
        .map(|at| format!("{{ name: s{at}, when: \"size([{}{at}]) > 3\" }}", "1,".repeat(490)));
    let conditions = format!(
        "workflows: [ {{ name: w, steps: [ {} ] }} ]",
        conditions.collect::<Vec<String>>().join(", ")
    );
    let tangle = (0..300).map(|own| {
        let others: Vec<String> =
            (0..300).filter(|other| *other != own).map(|other| format!("s{other}")).collect();
        format!("{{ name: s{own}, depends: [ {} ] }}", others.join(", "))
    });
    let tangle = format!(
        "workflows: [ {{ name: w, steps: [ {} ] }} ]",
        tangle.collect::<Vec<String>>().join(", ")
    );
    let too_deep =
        "lists and mappings nest deeper than 32 levels here; a workflow file needs seven";
    let too_many = "the file has more than 100000 keys and values up to here, those that aliases \
                    repeat included; split it";
    let too_large = "the file is larger than 1024 KiB; a workflow file of that size is a mistake, \
                     or should be split";
    let cases = [
        ("billion laughs", bomb, too_many),
        ("quadratic aliases", quadratic, too_many),
        ("values without end", format!("workflows: [ {} ]", "a,".repeat(500_000)), too_many),
        ("deep flow lists", format!("workflows: {}", "[".repeat(10_000)), too_deep),
        ("deep flow mappings", format!("workflows: {}", "{a: ".repeat(10_000)), too_deep),
        ("deep block lists", format!("workflows:\n{}", "- ".repeat(10_000)), too_deep),
        (
            "deep block mappings",
            (0..1_000).map(|depth| format!("{}a:\n", " ".repeat(depth))).collect(),
            too_deep,
        ),
        ("deep keys", "? ".repeat(10_000), too_deep),
        (
            "a big scalar",
            format!("workflows: [ {{ name: {} }} ]", "x".repeat(10 * 1024 * 1024)),
            too_large,
        ),
        (
            "a big scalar within the limit",
            format!(
                "workflows: [ {{ name: {}, steps: [ {{ name: s }} ] }} ]",
                "x".repeat(FILE_BYTES_MAX - 60)
            ),
            "more than the 200",
        ),
        (
            "a big quoted scalar",
            format!(
                "workflows: [ {{ name: \"{}\", steps: [ {{ name: s }} ] }} ]",
                "\\n".repeat(FILE_BYTES_MAX / 2 - 60)
            ),
            "is not a name",
        ),
        ("an open quote", format!("workflows: \"{}", "x\n ".repeat(300_000)), "unclosed quote"),
        ("nothing but anchors", format!("workflows: [ {} ]", "&a a,".repeat(200_000)), too_many),
        ("nothing but comments", "# comment\n".repeat(100_000), "the file is empty"),
        (
            "thousands of unknown keys",
            (0..45_000).map(|at| format!("workflow{at}: a\n")).collect(),
            "unknown key",
        ),
        ("thousands of misspelt dependencies", misspelt, "which is not a step here"),
        ("conditions without end", conditions, "the conditions of the file have more than 128 KiB"),
        ("countless cycles", tangle, "depends on itself by a cycle"),
    ];
    for (name, text, expected) in cases {
        let (errors, took) = timed(|| load_text("f", &text).expect_err(name));
        assert!(errors.0[0].message.contains(expected), "{name}: {}", errors.0[0]);
        assert!(took < REFUSAL_TIME_MAX, "{name} took {took:?}");
    }
}

#[test]
fn a_file_of_fifty_megabytes_and_one_without_end_are_refused_at_once() {
    let directory = tempfile::tempdir().expect("a scratch directory");
    let path = directory.path().join("big.yaml");
    let mut file = std::fs::File::create(&path).expect("creates");
    file.write_all(b"workflows:\n").expect("writes");
    file.set_len(50 * 1024 * 1024).expect("grows");
    for path in [path, PathBuf::from("/dev/zero")] {
        let (errors, took) =
            timed(|| load_files(std::slice::from_ref(&path)).expect_err("too large"));
        assert!(
            errors.to_string().ends_with(
                "the file is larger than 1024 KiB; a workflow file of that size is a mistake, or \
                 should be split"
            ),
            "{errors}"
        );
        assert!(took < REFUSAL_TIME_MAX, "{} took {took:?}", path.display());
    }
}

#[expect(clippy::disallowed_methods, reason = "how long a refusal takes is what is tested")]
fn timed<T>(work: impl FnOnce() -> T) -> (T, Duration) {
    let begun = Instant::now();
    let done = work();
    (done, begun.elapsed())
}
