#![no_main]

use support::fuzz_targets::correlation_ids::run;

libfuzzer_sys::fuzz_target!(|data: &[u8]| run(data));
