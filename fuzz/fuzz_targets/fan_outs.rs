#![no_main]

use support::fuzz_targets::fan_outs::run;

libfuzzer_sys::fuzz_target!(|data: &[u8]| run(data));
