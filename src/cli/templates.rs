//! The templates: files of `examples/`, which are in the program.

/// A template of `init`.
pub(crate) struct Template {
    /// What `init` calls it.
    pub(crate) name: &'static str,
    /// What it has, without a full stop.
    pub(crate) about: &'static str,
    /// The name and the text of each file.
    pub(crate) files: &'static [(&'static str, &'static str)],
    /// The command that makes what its workers need, if there is one.
    pub(crate) prepare: Option<&'static str>,
    /// The commands of its workers, without `workflow-manager work --watch`.
    pub(crate) workers: &'static [&'static str],
    /// The command of the web service that it calls, if it calls one.
    pub(crate) service: Option<&'static str>,
    /// The arguments of `run` for its first job.
    pub(crate) job: &'static str,
}

/// Returns the name of a file and its text, which is in a folder of `examples/`.
macro_rules! file {
    ($folder:literal, $name:literal) => {
        ($name, include_str!(concat!("../../examples/", $folder, "/", $name)))
    };
}

/// The first job of the templates that greet.
const GREETING: &str = r#"greeting --message '{"name":"Ada"}'"#;

/// The templates, in the order of `init --list`.
pub(crate) const TEMPLATES: &[Template] = &[
    Template {
        name: "python",
        about: "A workflow of one step, with its worker in Python",
        files: &[
            file!("first", "workflow.yaml"),
            file!("first", "tests.yaml"),
            file!("first/python", "worker.py"),
        ],
        prepare: None,
        workers: &["greet -- python3 worker.py"],
        service: None,
        job: GREETING,
    },
    Template {
        name: "node",
        about: "A workflow of one step, with its worker in JavaScript for Node.js",
        files: &[
            file!("first", "workflow.yaml"),
            file!("first", "tests.yaml"),
            file!("first/node", "worker.mjs"),
        ],
        prepare: None,
        workers: &["greet -- node worker.mjs"],
        service: None,
        job: GREETING,
    },
    Template {
        name: "rust",
        about: "A workflow of one step, with its worker in Rust",
        files: &[
            file!("first", "workflow.yaml"),
            file!("first", "tests.yaml"),
            file!("first/rust", "Cargo.toml"),
            file!("first/rust", "worker.rs"),
        ],
        prepare: Some("cargo build"),
        workers: &["greet -- target/debug/worker"],
        service: None,
        job: GREETING,
    },
    Template {
        name: "shell",
        about: "A workflow of one step, with its worker in shell; it needs jq",
        files: &[
            file!("first", "workflow.yaml"),
            file!("first", "tests.yaml"),
            file!("first/shell", "worker.sh"),
        ],
        prepare: None,
        workers: &["greet -- sh worker.sh"],
        service: None,
        job: GREETING,
    },
    Template {
        name: "go",
        about: "A workflow of one step, with its worker in Go",
        files: &[
            file!("first", "workflow.yaml"),
            file!("first", "tests.yaml"),
            file!("first/go", "worker.go"),
        ],
        prepare: Some("go build -o worker worker.go"),
        workers: &["greet -- ./worker"],
        service: None,
        job: GREETING,
    },
    Template {
        name: "approval",
        about: "A person decides, and is reminded when that takes long",
        files: &[
            file!("recipes/approval", "workflow.yaml"),
            file!("recipes/approval", "tests.yaml"),
        ],
        prepare: None,
        workers: &["ask remind pay -- cat"],
        service: None,
        job: r#"approval --detach --message '{"who":"Ada","cents":4200}'"#,
    },
    Template {
        name: "payment-event",
        about: "An order waits for an event from outside, and not for ever",
        files: &[
            file!("recipes/payment-event", "workflow.yaml"),
            file!("recipes/payment-event", "tests.yaml"),
        ],
        prepare: None,
        workers: &["reserve ship release -- cat"],
        service: None,
        job: r#"payment-event --detach --message '{"article":"pen"}'"#,
    },
    Template {
        name: "undo",
        about: "Two bookings: if one fails, the other is given back",
        files: &[file!("recipes/undo", "workflow.yaml"), file!("recipes/undo", "tests.yaml")],
        prepare: None,
        workers: &["flight hotel cancel-flight cancel-hotel confirm -- cat"],
        service: None,
        job: r#"undo --message '{"to":"Oslo"}'"#,
    },
    Template {
        name: "large-files",
        about: "Files by reference: messages have their names and checksums",
        files: &[
            file!("recipes/large-files", "workflow.yaml"),
            file!("recipes/large-files", "tests.yaml"),
            file!("recipes/large-files", "compress.py"),
            file!("recipes/large-files", "verify.py"),
        ],
        prepare: None,
        workers: &["compress -- python3 compress.py", "verify -- python3 verify.py"],
        service: None,
        job: r#"large-files --message '{"file":"README.md"}'"#,
    },
    Template {
        name: "csv-fan-out",
        about: "A CSV file of 100,000 lines, summed in a hundred parts",
        files: &[
            file!("recipes/csv-fan-out", "workflow.yaml"),
            file!("recipes/csv-fan-out", "tests.yaml"),
            file!("recipes/csv-fan-out", "csv_steps.py"),
            file!("recipes/csv-fan-out", "make_csv.py"),
        ],
        prepare: Some("python3 make_csv.py"),
        workers: &[
            "split -- python3 csv_steps.py split",
            "sum --jobs 4 -- python3 csv_steps.py sum",
            "total -- python3 csv_steps.py total",
        ],
        service: None,
        job: r#"csv-fan-out --message '{"file":"orders.csv"}'"#,
    },
    Template {
        name: "web-service",
        about: "A web service that the manager calls, without a worker",
        files: &[
            file!("recipes/web-service", "workflow.yaml"),
            file!("recipes/web-service", "tests.yaml"),
            file!("recipes/web-service", "service.py"),
        ],
        prepare: None,
        workers: &[],
        service: Some("python3 service.py"),
        job: r#"web-service --message '{"article":"pen","count":3}'"#,
    },
    Template {
        name: "slow-service",
        about: "A slow service behind a limit: so many calls a second, so many at once",
        files: &[
            file!("recipes/slow-service", "workflow.yaml"),
            file!("recipes/slow-service", "tests.yaml"),
        ],
        prepare: None,
        workers: &["locate -- cat"],
        service: None,
        job: r#"slow-service --message '{"addresses":[{"city":"Oslo"},{"city":"Bonn"}]}'"#,
    },
    Template {
        name: "nightly-report",
        about: "A report each working day at two in the morning, made by a schedule",
        files: &[
            file!("recipes/nightly-report", "workflow.yaml"),
            file!("recipes/nightly-report", "tests.yaml"),
            file!("recipes/nightly-report", "report.py"),
        ],
        prepare: None,
        workers: &["figures -- python3 report.py figures", "report -- python3 report.py report"],
        service: None,
        job: r#"nightly-report --message '{"regions":["north","south"]}'"#,
    },
    Template {
        name: "one-per-customer",
        about: "One job at a time for each customer, in the order in which they come",
        files: &[
            file!("recipes/one-per-customer", "workflow.yaml"),
            file!("recipes/one-per-customer", "tests.yaml"),
        ],
        prepare: None,
        workers: &["load change store -- cat"],
        service: None,
        job: r#"one-per-customer --message '{"customer":"Ada","cents":100}'"#,
    },
    Template {
        name: "three-languages",
        about: "A pipeline of three workers in Python, JavaScript and shell",
        files: &[
            file!("recipes/three-languages", "workflow.yaml"),
            file!("recipes/three-languages", "tests.yaml"),
            file!("recipes/three-languages", "words.py"),
            file!("recipes/three-languages", "lengths.mjs"),
            file!("recipes/three-languages", "longest.sh"),
        ],
        prepare: None,
        workers: &[
            "words -- python3 words.py",
            "lengths -- node lengths.mjs",
            "longest -- sh longest.sh",
        ],
        service: None,
        job: r#"three-languages --message '{"text":"the quick fox"}'"#,
    },
];
