#![no_main]

use workflow_manager_fuzz::correlation_ids::run;

libfuzzer_sys::fuzz_target!(|data: &[u8]| run(data));
