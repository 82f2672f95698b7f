//! Tests of exact comparisons of integers with floating-point numbers in conditions.

use super::evaluate_text;

#[test]
fn integers_and_doubles_are_compared_without_rounding() {
    for text in [
        "9007199254740993 > 9007199254740992.0 && 9007199254740992.0 < 9007199254740993",
        "9007199254740993 >= 9007199254740992.0 && !(9007199254740993 <= 9007199254740992.0)",
        "9007199254740993 != 9007199254740992.0 && 9007199254740992 == 9007199254740992.0",
        "-9007199254740993 < -9007199254740992.0 && input.neg == -9223372036854775808.0",
        "9223372036854775807 < 9223372036854775808.0 && 9223372036854775807 < 1e19",
        "input.big > 1e19 && input.big < 18446744073709551616.0 && input.big != input.huge",
        "!(9007199254740993 in [9007199254740992.0]) && 9007199254740992 in [9007199254740992.0]",
        "[9007199254740993] != [9007199254740992.0] && [9007199254740992] == [9007199254740992.0]",
        "{'a': 9007199254740993} != {'a': 9007199254740992.0} && {'a': 1} == {'a': 1.0}",
        "{1: 'a'} == {1u: 'a'} && 1 in {1u: 'a'} && {'a': 1} != {'b': 1} && {'a': 1} != {}",
        "[9007199254740992.0].exists(x, x < 9007199254740993)",
        "double('NaN') != double('NaN') && 1 != double('NaN') && !(double('NaN') == 1u)",
    ] {
        assert_eq!(evaluate_text(text), Ok(true), "{text}");
    }
    for (text, expected) in [
        ("1 < double('NaN')", "`<` cannot be applied to int and double"),
        ("double('NaN') >= 1", "`>=` cannot be applied to double and int"),
    ] {
        let error = evaluate_text(text).expect_err(text);
        assert!(error.contains(expected), "{text}: {error}");
    }
}
