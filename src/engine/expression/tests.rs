//! Tests of conditions: their results, their errors, and their limits.

mod comparisons;

use super::*;
use crate::json::Message;
use proptest::prelude::*;
use std::cell::Cell;

/// The variables of a job of two steps, `split` and `count-words`.
struct TestScope {
    input: Message,
    job: Message,
    /// The output of `split`.
    output: Message,
    /// How often `input` was read.
    input_reads: Cell<usize>,
}

impl TestScope {
    fn new(input: &str) -> TestScope {
        let message = |text: &str| Message::parse(text.as_bytes()).expect("a message");
        TestScope {
            input: message(input),
            job: message(r#"{"book":"Ulysses"}"#),
            output: message(r#"{"count":3}"#),
            input_reads: Cell::new(0),
        }
    }
}

impl Scope for TestScope {
    fn input(&self) -> Message {
        self.input_reads.set(self.input_reads.get() + 1);
        self.input.clone()
    }

    fn job(&self) -> &Message {
        &self.job
    }

    fn step(&self, name: &str) -> Option<ScopeStep<'_>> {
        self.steps().into_iter().find(|step| step.name == name)
    }

    fn steps(&self) -> Vec<ScopeStep<'_>> {
        vec![
            ScopeStep {
                name: "split",
                state: "completed",
                status: "PASSED",
                output: Some(&self.output),
            },
            ScopeStep { name: "count-words", state: "waiting", status: "", output: None },
        ]
    }
}

const INPUT: &str = r#"{
    "count": 3, "ratio": 0.5, "whole": 1.0, "big": 18446744073709551615,
    "huge": 123456789012345678901234567890, "neg": -9223372036854775808,
    "title": "äöü", "flag": true, "none": null, "lines": [{"n": 1}, {"n": 2}, {"n": 3}],
    "deep": {"a": {"b": [1, 2]}}, "odd-key": 1, "count": 4, "texts": ["b", "a"]
}"#;

fn evaluate(expression: &Expression, scope: &dyn Scope) -> Result<bool, String> {
    expression.evaluate(scope, &mut DecisionBudget::default(), 0)
}

fn evaluate_text(text: &str) -> Result<bool, String> {
    evaluate(&Expression::parse(text).expect(text), &TestScope::new(INPUT))
}

#[test]
fn conditions_have_the_results_that_cel_defines() {
    for text in [
        "true",
        "input.count == 4",
        "input.count == 4.0 && input.whole == 1 && input.ratio * 2.0 == 1.0",
        "input.big == 18446744073709551615u && type(input.big) == uint",
        "type(input.huge) == double && input.huge > 1e29",
        "input.neg == -9223372036854775808 && type(input.neg) == int",
        "input.title == 'äöü' && size(input.title) == 3 && input['title'].size() == 3",
        "input.title.startsWith('ä') && input.title.endsWith('ü') && input.title.contains('ö') && \
         !input.title.contains('x')",
        "input.flag && !false",
        "input.none == null",
        "input['odd-key'] == 1 && 'odd-key' in input && !('even-key' in input)",
        "has(input.none) && !has(input.nothing) && !has(input.deep.x) && has(input.deep.a.b)",
        "input.lines.all(l, l.n > 0) && input.lines.exists(l, l.n == 2) && \
         input.lines.exists_one(l, l.n == 3)",
        "input.lines.map(l, l.n) == [1, 2, 3] && input.lines.filter(l, l.n > 1).size() == 2",
        "input.lines.map(l, l.n > 1, l.n * 2) == [4, 6]",
        "input.lines.map(input, input.n + size(job.book)) == [8, 9, 10]",
        "input.lines[1].n == 2 && input.deep.a.b[0] == 1",
        "input.lines.exists(l, input.deep.a.b.exists(b, l.n == b))",
        "{'a': 1}.a == 1 && {'a': 1} == {'a': 1} && [1, 'x', null][1] == 'x'",
        "job.book == 'Ulysses' && size(job) == 1",
        "steps.split.state == 'completed' && steps.split.status == 'PASSED' && \
         steps.split.output.count == 3",
        "steps['count-words'].state == 'waiting' && steps['count-words'].status == '' && \
         steps['count-words'].output == {}",
        "size(steps) == 2 && steps[input.texts[0] == 'b' ? 'split' : 'x'].output.count == 3",
        "steps.exists(name, steps[name].state == 'waiting')",
        "input.nothing == 1 || true",
        "true || input.nothing == 1",
        "!(input.nothing == 1 && false)",
        "int('3') + 1 == 4 && string(3) == '3' && double('1.5') == 1.5 && uint(3) == 3u \
         && bool('true')",
        "(input.count > 3 ? 'many' : 'few') == 'many'",
        "input.count\n  == 4 // a comment",
    ] {
        assert_eq!(evaluate_text(text), Ok(true), "{text}");
        assert_eq!(evaluate_text(&format!("!({}\n)", text)), Ok(false), "{text}");
    }
}

#[test]
fn a_condition_without_a_result_has_an_error_of_one_sentence() {
    let cases = [
        ("input.nothing > 3", "no such key: nothing"),
        ("steps['nowhere'].state == ''", "no such key: nowhere"),
        ("steps['count-words'].output.count > 3", "no such key: count"),
        ("input.count", "evaluates to 4 (int), expected true or false"),
        ("input.title", "evaluates to \"äöü\" (string), expected true or false"),
        ("input.ratio", "evaluates to 0.5 (double), expected true or false"),
        ("input.none", "evaluates to null, expected true or false"),
        ("input.lines", "evaluates to [{..}, {..}, {..}] (list), expected true or false"),
        ("input.deep", "evaluates to {a: {..}} (map), expected true or false"),
        ("input.count + 9223372036854775807 > 0", "`+` leaves the range of its numbers"),
        ("-input.neg > 0", "`-` leaves the range of its numbers"),
        ("input.neg / -1 > 0", "`/` leaves the range of its numbers"),
        ("input.neg % -1 == 0", "`%` leaves the range of its numbers"),
        ("input.count / 0 == 1", "division by zero"),
        ("input.count % 0 == 1", "division by zero"),
        ("input.count > 'a'", "`>` cannot be applied to int and string"),
        ("input.count + 'a' == 'b'", "`+` cannot be applied to int and string"),
        ("input.count && true", "`&&` cannot be applied to int and bool"),
        ("!input.count", "`!` cannot be applied to int"),
        ("input.lines[3].n == 1", "the list has no element 3 (int)"),
        ("input.lines[-1].n == 1", "the list has no element -1 (int)"),
        ("input.lines.n == 1", "a key cannot be applied to list and string"),
        ("input.title.n == 1", "a key cannot be applied to string and string"),
        ("input.count.all(x, true)", "found int where iterable is expected"),
        ("input.title in input.title", "`in` cannot be applied to string and string"),
        ("int('x') == 1", "int(): string parse error: invalid digit found in string"),
        ("size(input.count) == 1", "size() cannot be applied to int"),
        ("{'a': 1, 'a': 2}.a == 1", "the key \"a\" (string) is given twice"),
        ("input.count ? true : false", "found int where bool is expected"),
    ];
    for (text, expected) in cases {
        assert_eq!(evaluate_text(text), Err(expected.to_owned()), "{text}");
    }
}

#[test]
fn an_invalid_text_is_refused_with_the_position_of_the_error() {
    let cases = [
        ("", "1:1 is empty; expected a condition, such as `input.count > 0`"),
        (" \n ", "2:2 is empty; expected a condition, such as `input.count > 0`"),
        ("input.n >", "1:10 ends too early; a value, a bracket or a `:` is missing"),
        ("(input.n > 3", "1:13 ends too early; a value, a bracket or a `:` is missing"),
        ("input.n = 3", "1:9 `=` is not an operator; `==` compares"),
        ("true & false", "1:6 `&` is not an operator; write `&&`"),
        ("true\n  and false", "2:3 `and` is written `&&`"),
        ("not true", "1:5 `not` is written `!`"),
        (
            "input.n == 'a",
            "1:12 this text has no closing quote in its line, or an unknown escape; write `\\\\` \
             for a backslash",
        ),
        (
            "input.ä == 1",
            "1:7 `ä` cannot stand in a name; a key of other characters than a-z, 0-9 and `_` goes \
             into brackets: [\"..\"]",
        ),
        (
            "'ä' == b",
            "1:8 unknown variable \"b\"; known are \"input\", \"job\" and \"steps\"; \
             a string goes into quotes",
        ),
        ("1 2", "1:3 expected an operator such as `&&` or `==`, or the end, found \"2\""),
        ("1 + * 2", "1:5 expected a value, found \"*\""),
        ("true ? 1", "1:9 ends too early; a value, a bracket or a `:` is missing"),
        ("@", "1:1 `@` means nothing here"),
        ("true &&\n inptu.n > 3", "2:2 unknown variable \"inptu\"; did you mean \"input\"?"),
        (
            "steps.book-split.state == 'x'",
            "1:12 unknown variable \"split\"; a key with `-` goes into brackets: [\"book-split\"]",
        ),
        ("input.a.all(lien, line.n > 1)", "1:19 unknown variable \"line\"; did you mean \"lien\"?"),
        (
            "input.a.all(x, true) && x",
            "1:25 unknown variable \"x\"; known are \"input\", \"job\" and \"steps\"; \
             a string goes into quotes",
        ),
        ("sise(input.a) > 0", "1:5 unknown function \"sise\"; did you mean \"size\"?"),
        (
            "input.a.matches('x')",
            "1:16 unknown function \"matches\"; there are no regular expressions: startsWith(), \
             endsWith() and contains() compare texts",
        ),
        ("now() > 3", "1:4 unknown function \"now\"; a condition cannot read the time"),
        ("size() > 0", "1:5 size() is called differently, as in size(input.lines)"),
        (
            "contains(input.a, 'x')",
            "1:9 contains() is called differently, as in input.title.contains(\"draft\")",
        ),
        (
            "input.a.all(x)",
            "1:12 all() is called differently, as in input.lines.all(line, line.count > 0)",
        ),
        (
            "input.a.all(1, true)",
            "1:13 the first argument names the variable of the loop, as in \
             list.all(item, item > 0)",
        ),
        ("has(input)", "1:5 has() asks for a key, as in has(input.count)"),
        (
            "input.?n == 1",
            "1:6 `?` behind a dot or bracket is not available; ask with has(), as in \
             has(input.count)",
        ),
        ("input.`n` == 1", "1:6 a key goes into brackets with quotes: [\"..\"]"),
        ("input.n == 99999999999999999999", "1:12 this number is too large for an int"),
        (
            "for == 1",
            "1:1 \"for\" is a reserved word; a key of that name goes into brackets: [\"for\"]",
        ),
        (
            "Line{n: 1} == 1",
            "1:5 there are no messages to build; a map is written with quotes around its \
             keys: {\"count\": 1}",
        ),
        ("optional.of(1).hasValue()", "1:24 unknown function \"hasValue\"; known are"),
    ];
    for (text, expected) in cases {
        let error = Expression::parse(text).expect_err(text);
        let rendered = format!("{}:{} {}", error.line, error.column, error.message);
        assert!(rendered.starts_with(expected), "{text}\n  {rendered}\n  {expected}");
    }
}

#[test]
fn the_steps_that_an_expression_names_are_returned() {
    let steps = |text: &str| Expression::parse(text).expect(text).steps().to_vec();
    assert_eq!(
        steps("steps.b.state == 'x' && steps['a-1'].output.n > steps.b.output.n"),
        ["b", "a-1"]
    );
    assert_eq!(steps("has(steps.a.output) && size(steps[input.x].output) > 0"), ["a"]);
    assert_eq!(steps("input.steps.a && job['steps'].a"), Vec::<String>::new());
    assert!(steps("input.l.all(steps, steps.a)").is_empty(), "`steps` is the loop's variable");
}

#[test]
fn a_key_or_state_that_no_step_has_is_a_mistake() {
    let mistakes = |text: &str| -> Vec<String> {
        Expression::parse(text)
            .expect(text)
            .mistakes()
            .iter()
            .map(|error| format!("{} {}", error.column, error.message))
            .collect()
    };
    let states = r#"it is "waiting", "running", "completed", "failed", "skipped" or "cancelled""#;
    assert_eq!(
        mistakes("steps.a.state == 'done'"),
        [format!("18 a step's state is never \"done\", {states}")]
    );
    assert_eq!(
        mistakes("'complete' != steps['a'].state && true"),
        [format!("1 a step's state is never \"complete\", {states}; did you mean \"completed\"?")]
    );
    assert_eq!(mistakes("steps.a.state in ['completed', 'Failed']").len(), 1);
    let keys = r#"it has "state", "status" and "output""#;
    assert_eq!(
        mistakes("has(steps.a.sate)"),
        [format!("4 a step has no \"sate\", {keys}; did you mean \"state\"?")]
    );
    assert_eq!(mistakes("steps.a.outputs.n == 1 && steps.b['x'] == 1").len(), 2);
    for correct in [
        "steps.a.state in ['completed', input.word]",
        "steps.a.state == input.word",
        "steps.a.output.state == 'done'",
        "steps.a.status == 'done'",
        "input.l.all(steps, steps.a.state == 'done' && steps.a.sate)",
    ] {
        assert_eq!(mistakes(correct), [""; 0], "{correct}");
    }
}

#[test]
fn data_that_a_condition_does_not_name_is_not_built() {
    let evaluate = |text, scope| evaluate(&Expression::parse(text).expect(text), scope);
    let scope = TestScope::new(INPUT);
    assert_eq!(evaluate("steps.split.state == 'completed' && job.book != ''", &scope), Ok(true));
    assert_eq!(scope.input_reads.get(), 0);
    assert_eq!(evaluate("input.count == 4 && input.flag", &scope), Ok(true));
    assert_eq!(scope.input_reads.get(), 1);
    // 1.5 million values, of which the first condition reads one.
    let large = TestScope::new(&format!(
        r#"{{"a":{{"large":[{}0],"n":1}},"odd":1e999}}"#,
        "[],".repeat(1_500_000)
    ));
    assert_eq!(evaluate("input.a.n == 1 && has(input.a.large) && !has(input.b)", &large), Ok(true));
    assert_eq!(evaluate("size(input.a) == 2", &large), Err(TOO_COSTLY.to_owned()));
    // `||` does not hide an exhausted budget.
    assert_eq!(evaluate("size(input.a) == 2 || true", &large), Err(TOO_COSTLY.to_owned()));
    let error = evaluate("input.odd > 1.0", &large).expect_err("no double");
    assert!(error.starts_with("cannot read the value of \"odd\": number out of range"), "{error}");
}

const TOO_COSTLY: &str = "takes more than 200000 operations with this data; look at less of it";

#[test]
fn the_cost_of_an_evaluation_is_limited() {
    let scope = TestScope::new(&format!(
        r#"{{"l":[{}0],"s":"{}"}}"#,
        "1,".repeat(2_000),
        "x".repeat(100_000)
    ));
    let evaluate = |text: &str| evaluate(&Expression::parse(text).expect(text), &scope);
    assert_eq!(evaluate("input.l.all(x, x < 2) && input.l.map(x, x + 1).size() == 2001"), Ok(true));
    assert_eq!(evaluate("input.l.exists(x, x + 1 == 0)"), Ok(false));
    // The result grows exponentially: each `map` doubles each element.
    let doubled = |list: &str, body: &str| {
        format!("size({list}{}) > 0", format!(".map(x, {body})").repeat(DEPTH_MAX - 10))
    };
    for text in [
        "input.l.all(x, input.l.all(y, x + y < 9))".to_owned(),
        "input.l.exists(x, input.l.exists(y, input.l.exists(z, x + y + z == 9)))".to_owned(),
        "input.l.exists(x, input.l.exists(y, input.l.exists(z, 1 / 0 == 9)))".to_owned(),
        "input.l.map(x, input.l).map(x, x.map(y, input.l)).size() > 0".to_owned(),
        "input.l.all(x, x in [input.l, input.l] || true)".to_owned(),
        "input.l.all(x, input.l == input.l)".to_owned(),
        "input.l.all(x, !input.s.contains('y'))".to_owned(),
        "input.l.all(x, {'a': input.l}.size() == 1)".to_owned(),
        doubled("['ab']", "x + x"),
        "input.l.exists(x, input.l.exists(y, y.a == 9))".to_owned(),
        doubled("[[1]]", "x + x"),
        doubled("[[1]]", "[x, x]"),
        doubled("[{'a': 1}]", "{'a': x, 'b': x}"),
    ] {
        assert_eq!(evaluate(&text), Err(TOO_COSTLY.to_owned()), "{text}");
    }
}

#[test]
fn hostile_texts_are_refused_or_limited() {
    for hostile in [
        "(".repeat(4096),
        format!("{}true{}", "(".repeat(2046), ")".repeat(2046)),
        "[".repeat(4096),
        "{".repeat(4096),
        "-".repeat(4096),
        "!-".repeat(2048),
        "a[".repeat(2048),
        "f(".repeat(2048),
        "a.".repeat(2048),
        "true?".repeat(819),
        "true?1:".repeat(585),
        "1+".repeat(2047) + "1",
        "1<".repeat(490) + "1",
        "1 in ".repeat(800) + "1",
        "input".to_owned() + &".a".repeat(900),
        "input".to_owned() + &"[0]".repeat(450),
        "\"".repeat(4096),
        "'\\".repeat(2048),
        "x".repeat(4096),
        "\u{0}".repeat(4096),
        "🙂".repeat(1024),
        "true || ".repeat(511) + "true",
        "x".repeat(4097),
    ] {
        let error = Expression::parse(&hostile).expect_err("refused");
        assert!(error.message.len() < 300 && error.line == 1 && error.column <= 4097, "{error:?}");
    }
    assert_eq!(
        evaluate_text(&format!("{}true", "!".repeat(900))),
        Ok(true),
        "pairs of `!` cancel each other"
    );
    let deep = |levels: usize| "1 + ".repeat(levels) + "1 > 0";
    // `1 + 1 > 0` nests three levels (docs/reference/workflow-data.md).
    assert_eq!(evaluate_text(&deep(DEPTH_MAX - 2)), Ok(true));
    assert_eq!(
        Expression::parse(&deep(DEPTH_MAX - 1)).expect_err("too deep").message,
        "nests deeper than 64 levels; a chain of operators nests one level for each"
    );
    assert_eq!(evaluate_text(&("true && ".repeat(400) + "true")), Ok(true), "a balanced tree");
    let nested = TestScope::new(&format!("{{\"a\":{}{}}}", "[".repeat(126), "]".repeat(126)));
    let equal = Expression::parse("[input.a] == [input.a]").expect("parses");
    assert_eq!(evaluate(&equal, &nested), Ok(true));
}

#[test]
fn a_condition_can_be_shared_between_threads_and_stored() {
    fn assert_shareable<T: Send + Sync + Clone>(_: &T) {}
    let expression = Expression::parse("input.n > 3").expect("parses");
    assert_shareable(&expression);
    let stored = serde_json::to_string(&expression).expect("serialises");
    assert_eq!(stored, r#""input.n > 3""#);
    assert_eq!(serde_json::from_str::<Expression>(&stored).expect("parses"), expression);
    assert!(serde_json::from_str::<Expression>(r#""input.n >""#).is_err());
    assert_eq!(format!("{expression:?}"), r#""input.n > 3""#);
}

/// Pieces of random expressions.
const PIECES: &[&str] = &[
    "input",
    "job",
    "steps",
    ".count",
    ".lines",
    ".deep",
    "['split']",
    "[0]",
    ".output",
    ".state",
    " == ",
    " != ",
    " < ",
    " >= ",
    " + ",
    " - ",
    " * ",
    " / ",
    " % ",
    " in ",
    " && ",
    " || ",
    "!",
    "-",
    " ? ",
    " : ",
    "(",
    ")",
    "[",
    "]",
    "{",
    "}",
    ", ",
    "1",
    "0",
    "2u",
    "1.5",
    "'a'",
    "\"b\"",
    "b'c'",
    "true",
    "null",
    "x",
    "y",
    ".all(x, ",
    ".map(x, ",
    ".exists(y, ",
    ".filter(x, ",
    ".exists_one(x, ",
    "has(",
    "size(",
    "int(",
    "string(",
    "type(",
    ".contains(",
    "ä",
    "\n",
    "//",
    "`",
    "@",
    "\\",
    "9223372036854775807",
    "-9223372036854775808",
    ".map(x, x + x)",
    ".map(x, [x, x])",
    "r'\\'",
    "input.lines.all(x, x.n > 0)",
    "input.count > 3",
];

/// Generates random expressions that follow the grammar, of any types.
fn grammatical_expression() -> impl Strategy<Value = String> {
    const LEAVES: &[&str] = &[
        "input",
        "job",
        "steps",
        "input.count",
        "input.big",
        "input.neg",
        "input.huge",
        "input.ratio",
        "input.title",
        "input.none",
        "input.lines",
        "input.deep",
        "input['odd-key']",
        "steps.split.output",
        "x",
        "0",
        "-1",
        "7u",
        "1.5",
        "-0.0",
        "9223372036854775807",
        "18446744073709551615u",
        "'ä'",
        "''",
        "b'\\xff'",
        "true",
        "null",
        "[]",
        "{}",
        "int",
        "'12'",
        "'nan'",
        "1e308",
    ];
    const OPERATORS: &[&str] =
        &["==", "!=", "<", "<=", ">", ">=", "+", "-", "*", "/", "%", "in", "&&", "||"];
    const FUNCTIONS: &[&str] =
        &["size", "int", "uint", "double", "string", "bool", "bytes", "type"];
    const METHODS: &[&str] = &["contains", "startsWith", "endsWith"];
    const LOOPS: &[&str] = &["all", "exists", "exists_one", "map", "filter"];
    prop::sample::select(LEAVES).prop_map(str::to_owned).prop_recursive(6, 40, 3, |operand| {
        let pair = || (operand.clone(), operand.clone());
        prop_oneof![
            (pair(), prop::sample::select(OPERATORS))
                .prop_map(|((a, b), operator)| format!("({a} {operator} {b})")),
            (operand.clone(), prop::sample::select(FUNCTIONS))
                .prop_map(|(a, function)| format!("{function}({a})")),
            (pair(), prop::sample::select(METHODS))
                .prop_map(|((a, b), method)| format!("({a}).{method}({b})")),
            (pair(), prop::sample::select(LOOPS))
                .prop_map(|((a, b), name)| format!("({a}).{name}(x, {b})")),
            (pair(), operand.clone()).prop_map(|((a, b), c)| format!("({a} ? {b} : {c})")),
            pair().prop_map(|(a, b)| format!("({a})[{b}]")),
            pair().prop_map(|(a, b)| format!("[{a}, {b}]")),
            pair().prop_map(|(a, b)| format!("{{{a}: {b}}}")),
            operand.clone().prop_map(|a| format!("!({a})")),
            operand.clone().prop_map(|a| format!("-({a})")),
            operand.clone().prop_map(|a| format!("has(({a}).count)")),
            operand.clone().prop_map(|a| format!("({a}).n")),
        ]
    })
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 2_000,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    /// Any text is refused with a position in it, or it can be evaluated: to a boolean, or to an
    /// error of one sentence.
    #[test]
    fn any_text_is_refused_or_evaluated(
        pieces in prop::collection::vec(prop::sample::select(PIECES), 0..25)
    ) {
        let text = pieces.concat();
        match Expression::parse(&text) {
            Err(error) => {
                prop_assert!(
                    error.line >= 1 && error.line <= text.split('\n').count(),
                    "{text}: {error:?}"
                );
                let line = text.split('\n').nth(error.line - 1).unwrap_or_default();
                prop_assert!(
                    error.column >= 1 && error.column <= line.chars().count() + 1,
                    "{text}: {error:?}"
                );
                prop_assert!(
                    !error.message.is_empty() && !error.message.contains(['\n', '{'])
                        || error.message.contains("{\""),
                    "{text}: {error:?}"
                );
            }
            Ok(expression) => {
                if let Err(reason) = evaluate(&expression, &TestScope::new(INPUT)) {
                    prop_assert!(!reason.is_empty() && !reason.contains('\n'), "{text}: {reason}");
                    prop_assert!(!reason.starts_with("cannot be evaluated"), "{text} panics");
                }
            }
        }
    }

    /// Whatever the types, an evaluation returns a boolean, or an error of one sentence.
    #[test]
    fn any_expression_is_evaluated(operand in grammatical_expression()) {
        // In a loop, which declares `x`. Compared with itself, to compare values of all types.
        let text = format!("['a', 1].exists(x, {operand} == {operand})");
        if let Ok(expression) = Expression::parse(&text)
            && let Err(reason) = evaluate(&expression, &TestScope::new(INPUT))
        {
            prop_assert!(!reason.is_empty() && !reason.contains('\n'), "{text}: {reason}");
            prop_assert!(!reason.starts_with("cannot be evaluated"), "{text} panics");
        }
    }
}
