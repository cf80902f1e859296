#![no_main]
libfuzzer_sys::fuzz_target!(|bytes: &[u8]| tidelog_tests::fuzzing::run("machine", bytes));
