#![no_main]

use support::fuzz_targets::journal_rows::run;

// The journal catches panics of the engine over damaged rows, so the fuzzer's own hook must not
// abort at them; a panic that leaves `run` is still a finding.
libfuzzer_sys::fuzz_target!(init: std::panic::set_hook(Box::new(|_| {})), |data: &[u8]| run(data));
