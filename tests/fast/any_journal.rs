//! The rules of any journal, for a journal in a file. What holds only of files and SQLite is tested
//! in `journal`, `journal_files` and `derived`.

support::journal_rules!(in_a_file, support::journal_rules::InFile::create());
