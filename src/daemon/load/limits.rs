//! The limits of a workflow file.

/// The largest workflow file, in bytes.
pub const FILE_BYTES_MAX: usize = 1024 * 1024;

/// The longest name of a workflow, task or step, in bytes. AMQP allows 255 for a message's
/// properties, and `message_id` is `<UUID>:<step>:<attempt>`.
pub(crate) const NAME_BYTES_MAX: usize = 200;

/// The longest queue name, virtual host, item key and status, in bytes. For queue names and virtual
/// hosts, it is AMQP's limit.
pub const TEXT_BYTES_MAX: usize = 255;

/// How many steps a workflow or a task may have.
pub const STEPS_MAX: usize = 1_000;

/// How many tasks a workflow may have.
pub(crate) const TASKS_MAX: usize = 1_000;

/// How many schedules a file may have.
pub(crate) const SCHEDULES_MAX: usize = 10_000;

/// How many virtual hosts a workflow may name.
pub(crate) const VHOSTS_MAX: usize = 100;

/// How many statuses a step may list.
pub const STATUSES_MAX: usize = 1_000;

/// How many users a step may list in `replyUsers`.
pub(crate) const REPLY_USERS_MAX: usize = 100;

/// How many attempts a retry may allow.
pub(crate) const ATTEMPTS_MAX: u64 = 1_000;

/// The largest factor by which the backoff of a retry grows.
pub(crate) const FACTOR_MAX: u32 = 100;

/// The highest `priority` of a step. AMQP 0-9-1 defines the message priorities 0 to 9.
pub(crate) const PRIORITY_MAX: u64 = 9;

/// How many steps all definitions may have together. Steps of tasks count too, and each step counts
/// once for each virtual host.
pub const STEPS_IN_ALL_MAX: usize = 100_000;

/// How many limits a file may have.
pub(crate) const LIMITS_MAX: usize = 1_000;

/// How many limits a step may name.
pub(crate) const STEP_LIMITS_MAX: usize = 8;

/// The largest `concurrency` of a limit.
pub(crate) const CONCURRENCY_MAX: u64 = 1_000_000;

/// The largest number of messages in the period of a rate.
pub(crate) const RATE_COUNT_MAX: u64 = 1_000_000;

/// The largest `burst` of a limit.
pub(crate) const BURST_MAX: u64 = 1_000_000;

/// How deep lists and mappings may nest. Workflow files nest far less.
pub const NESTING_MAX: usize = 32;

/// How many keys and values a file may have, including those that aliases repeat. A text counts
/// once more for each [`TEXT_UNIT_BYTES`] of it.
pub const VALUES_MAX: usize = 100_000;

/// The length of a text that counts as one of [`VALUES_MAX`], in bytes. So aliases cannot repeat
/// more than 25 MB of text.
pub(super) const TEXT_UNIT_BYTES: usize = 256;

/// The total length of the conditions of one file, in bytes. Equal conditions count once. Compiling
/// a condition takes about a thousand times as long as reading it.
pub(crate) const CONDITION_BYTES_MAX: usize = 128 * 1024;
