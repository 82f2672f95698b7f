#![no_main]

use workflow_manager_fuzz::frames::run;

libfuzzer_sys::fuzz_target!(|data: &[u8]| run(data));
