//! Where the journals of the rules are stored.

use std::path::Path;
use workflow_manager::journal::{
    Journal, JournalError, JournalOptions, PostgresJournal, PostgresOptions, SqliteJournal,
};
use workflow_manager::trust::Authorities;

/// Where a journal is stored.
pub trait Place {
    /// Opens the journal, or creates it.
    fn open(&self) -> Result<Box<dyn Journal>, JournalError>;

    /// Returns a copy of what a process that ends now leaves.
    fn crash(&self) -> Box<dyn Place>;

    /// Makes a journal that is closed one from before it had failures and trends.
    fn forget_failures(&self);

    /// Makes the journal one of the version before there was the table of completed jobs with
    /// failed items. It must be closed.
    fn forget_tolerated(&self);

    /// Returns whether the journal projects what is committed later, and keeps confirms pending.
    fn defers_projection(&self) -> bool;
}

/// A file of SQLite.
pub struct InFile(tempfile::TempDir);

impl InFile {
    /// Creates an empty temporary directory for the file.
    pub fn create() -> InFile {
        InFile(tempfile::tempdir().expect("a folder"))
    }

    fn folder(&self) -> &Path {
        self.0.path()
    }
}

impl Place for InFile {
    fn open(&self) -> Result<Box<dyn Journal>, JournalError> {
        let file = self.folder().join("j.db");
        let options =
            JournalOptions { file, cache_bytes: 1 << 20, verify_bytes_max: 1 << 30, pages_max: 0 };
        Ok(Box::new(SqliteJournal::open(&options)?))
    }

    fn crash(&self) -> Box<dyn Place> {
        let copy = InFile::create();
        for name in ["j.db", "j.db-wal"] {
            std::fs::copy(self.folder().join(name), copy.folder().join(name)).expect("copied");
        }
        Box::new(copy)
    }

    fn forget_failures(&self) {
        let sql = "DROP TABLE failures; DROP TABLE trends; DROP TABLE tolerated;
                   PRAGMA user_version = 12";
        let file = rusqlite::Connection::open(self.folder().join("j.db")).expect("opens");
        file.execute_batch(sql).expect("it is as it was");
    }

    fn forget_tolerated(&self) {
        let sql = "DROP TABLE tolerated; PRAGMA user_version = 13";
        let file = rusqlite::Connection::open(self.folder().join("j.db")).expect("opens");
        file.execute_batch(sql).expect("it is as it was");
    }

    fn defers_projection(&self) -> bool {
        true
    }
}

/// A database of a PostgreSQL server, which is dropped at the end.
pub struct InDatabase {
    /// The address of the server, without a database.
    server: String,
    name: String,
}

impl InDatabase {
    /// Creates an empty database on the server of `tests/postgres`.
    pub fn create() -> InDatabase {
        InDatabase::with_options("")
    }

    /// Creates an empty database with options of `CREATE DATABASE`.
    pub fn with_options(options: &str) -> InDatabase {
        let server = std::env::var("POSTGRES_URL").expect("POSTGRES_URL, as tests/postgres says");
        let name = format!("test_{}", workflow_manager::clock::new_id().0.simple());
        let database = InDatabase { server, name };
        database.run(
            "psql",
            "postgres",
            &["-c", &format!("CREATE DATABASE {} {options}", database.name)],
        );
        database
    }

    /// Returns the address of the database.
    pub fn url(&self) -> String {
        format!("{}/{}", self.server, self.name)
    }

    /// Runs an SQL statement, and returns what psql prints: a line for each row, with columns
    /// separated by `|`.
    pub fn query(&self, sql: &str) -> String {
        self.run("psql", &self.name, &["-c", sql])
    }

    /// Runs statements one after the other in one session, each in a transaction of its own, and
    /// returns what psql prints.
    pub fn query_each(&self, statements: &[&str]) -> String {
        let arguments: Vec<&str> =
            statements.iter().flat_map(|statement| ["-c", *statement]).collect();
        self.run("psql", &self.name, &arguments)
    }

    fn run(&self, program: &str, database: &str, arguments: &[&str]) -> String {
        self.try_run(program, database, arguments).unwrap_or_else(|error| panic!("{error}"))
    }

    /// Runs a program of PostgreSQL, and returns what it prints, or what went wrong.
    fn try_run(&self, program: &str, database: &str, arguments: &[&str]) -> Result<String, String> {
        let directory =
            std::env::var("POSTGRES_BIN").expect("POSTGRES_BIN, as tests/postgres says");
        let output = std::process::Command::new(Path::new(&directory).join(program))
            .arg(format!("--dbname={}/{database}", self.server))
            .args(if program == "psql" { &["-qAtX", "-v", "ON_ERROR_STOP=1"][..] } else { &[] })
            .args(arguments)
            .output()
            .expect("the program of PostgreSQL runs");
        if !output.status.success() {
            let errors = String::from_utf8_lossy(&output.stderr);
            return Err(format!("{program} {arguments:?}: {errors}"));
        }
        Ok(String::from_utf8(output.stdout).expect("UTF-8"))
    }
}

impl Drop for InDatabase {
    fn drop(&mut self) {
        let sql = format!("DROP DATABASE {} WITH (FORCE)", self.name);
        // A panic while a test panics would end all tests of the process.
        match self.try_run("psql", "postgres", &["-c", &sql]) {
            Err(error) if std::thread::panicking() => eprintln!("{error}"),
            outcome => drop(outcome.unwrap_or_else(|error| panic!("{error}"))),
        }
    }
}

impl InDatabase {
    /// Opens the journal as the manager with this name, or creates it.
    ///
    /// # Errors
    ///
    /// Returns an error if another process of the name is active.
    pub fn open_as(&self, name: &str) -> Result<Box<dyn Journal>, JournalError> {
        InDatabase::open_at(&self.url(), name)
    }

    /// The same, of the database at this address.
    ///
    /// # Errors
    ///
    /// Returns an error if another process of the name is active.
    pub fn open_at(url: &str, name: &str) -> Result<Box<dyn Journal>, JournalError> {
        let options = PostgresOptions {
            server: url.parse().expect("an address"),
            authorities: Authorities::load_system(),
            name: name.to_owned(),
            api_address: None,
            require_synchronous: false,
        };
        Ok(Box::new(PostgresJournal::open(options)?))
    }
}

impl Place for InDatabase {
    fn open(&self) -> Result<Box<dyn Journal>, JournalError> {
        self.open_as("default")
    }

    fn crash(&self) -> Box<dyn Place> {
        let copy = InDatabase::create();
        let dump = tempfile::NamedTempFile::new().expect("a file");
        let path = dump.path().to_str().expect("UTF-8");
        self.run("pg_dump", &self.name, &["--file", path]);
        // The process that ended is declared dead, as after its lease.
        copy.run("psql", &copy.name, &["-f", path, "-c", "UPDATE public.names SET owner = NULL"]);
        Box::new(copy)
    }

    fn forget_failures(&self) {
        let tables = ["DROP TABLE failures", "DROP TABLE trends", "DROP TABLE tolerated"];
        self.query_each(&tables);
        self.query_each(&["UPDATE cluster SET format = 3"]);
    }

    fn forget_tolerated(&self) {
        self.query_each(&["DROP TABLE tolerated"]);
        self.query_each(&["UPDATE cluster SET format = 4"]);
    }

    fn defers_projection(&self) -> bool {
        false
    }
}
