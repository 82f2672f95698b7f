//! The table of keys of workflow files (docs/reference/workflow-file.md): where each key is
//! allowed, and what value it takes. Unknown keys get an error with a suggestion.

use super::limits::{
    ATTEMPTS_MAX, BURST_MAX, CONCURRENCY_MAX, FACTOR_MAX, LIMITS_MAX, PRIORITY_MAX,
    REPLY_USERS_MAX, SCHEDULES_MAX, STATUSES_MAX, STEPS_MAX, TASKS_MAX, VHOSTS_MAX,
};

/// The key for the type of a queue.
pub(super) const QUEUE_TYPE_KEY: &str = "queueType";

/// The key for the arguments of a queue.
pub(super) const QUEUE_ARGUMENTS_KEY: &str = "queueArguments";

/// The kinds of mappings in a workflow file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Section {
    /// The top level of the file.
    File,
    Workflow,
    Task,
    Step,
    Retry,
    Limit,
    JobLimit,
    Schedule,
}

/// The kind of value that a key takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ValueKind {
    /// The name of a workflow, task or step.
    Name,
    /// The names of steps, or `__start__`.
    Dependencies,
    /// A text without control characters.
    Text,
    /// A text without control characters, which may be empty.
    TextOrEmpty,
    /// The name of a queue, or the address of a web service.
    Queue,
    /// The name of a bus.
    Bus,
    /// A list of distinct texts, with the maximum number of items. It may be empty.
    TextList(usize),
    /// A list of at least one distinct text, with the maximum number of items.
    NonEmptyTextList(usize),
    /// A whole number from `min` to `max`, both included.
    Integer { min: u64, max: u64 },
    /// A decimal number of at least 1, with its maximum.
    Factor(u32),
    /// A duration, which may be 0.
    Duration,
    /// A duration that is not 0.
    PositiveDuration,
    /// A number of child jobs, or a percentage of them.
    Tolerance,
    /// A CEL expression.
    Condition,
    /// A CEL expression whose value is a text, a number or a boolean.
    Key,
    /// CEL expressions by the names of their columns.
    Columns,
    /// A number of messages in a period.
    Rate,
    /// The name of a limit, or a list of them.
    LimitNames,
    /// The message of a job: a mapping with any keys.
    Message,
    /// `true` or `false`.
    Boolean,
    /// The arguments of a queue, by name.
    QueueArguments,
    /// One of these words.
    Choice(&'static [&'static str]),
    /// A mapping with the keys of this section.
    Mapping(Section),
    /// A list of mappings with the keys of this section. `min` and `max` limit the number of items.
    MappingList { section: Section, min: usize, max: usize },
}

/// A row of the table: a key, where it is allowed, and what value it takes.
#[derive(Debug)]
pub(super) struct KnownKey {
    pub(super) section: Section,
    pub(super) name: &'static str,
    pub(super) is_required: bool,
    pub(super) kind: ValueKind,
    /// The meaning of the key, for the JSON Schema. Editors show it.
    pub(super) description: &'static str,
}

/// Returns the table row of a required key.
const fn required(
    section: Section,
    name: &'static str,
    kind: ValueKind,
    description: &'static str,
) -> KnownKey {
    KnownKey { section, name, is_required: true, kind, description }
}

/// Returns the table row of an optional key.
const fn optional(
    section: Section,
    name: &'static str,
    kind: ValueKind,
    description: &'static str,
) -> KnownKey {
    KnownKey { section, name, is_required: false, kind, description }
}

/// All keys. The check for unknown keys and the JSON Schema are derived from this table; the other
/// modules of [`super`] parse the values.
pub(super) const KEYS: &[KnownKey] = &[
    required(
        Section::File,
        "workflows",
        ValueKind::MappingList { section: Section::Workflow, min: 1, max: usize::MAX },
        "The workflows.",
    ),
    optional(
        Section::File,
        "limits",
        ValueKind::MappingList { section: Section::Limit, min: 0, max: LIMITS_MAX },
        "Limits of rate and concurrency, which steps and workflows of the file name in `limit`. A \
         name is one limit in each virtual host.",
    ),
    required(
        Section::Workflow,
        "name",
        ValueKind::Name,
        "The name, unique over all files; upper and lower case are not told apart.",
    ),
    optional(
        Section::Workflow,
        "vhosts",
        ValueKind::TextList(VHOSTS_MAX),
        "Runs the workflow once in each of these virtual hosts, as <vhost>/<name>. Default: in \
         the one that the broker's address names.",
    ),
    optional(
        Section::Workflow,
        QUEUE_TYPE_KEY,
        ValueKind::Choice(&["classic", "quorum"]),
        "The type with which the queues of its workers, and its own, are declared where they are \
         missing; only over AMQP. Default: as the queue was seen, else amqp.queue_type.",
    ),
    optional(
        Section::Workflow,
        QUEUE_ARGUMENTS_KEY,
        ValueKind::QueueArguments,
        "The arguments with which these queues are declared, such as { x-max-length: 10000 }. \
         Default: as the queue was seen, else the setting amqp.queue_arguments.",
    ),
    required(
        Section::Workflow,
        "steps",
        ValueKind::MappingList { section: Section::Step, min: 1, max: STEPS_MAX },
        "The steps.",
    ),
    optional(
        Section::Workflow,
        "tasks",
        ValueKind::MappingList { section: Section::Task, min: 0, max: TASKS_MAX },
        "The tasks that steps of this workflow name.",
    ),
    optional(
        Section::Workflow,
        "deadline",
        ValueKind::PositiveDuration,
        "The whole job fails when it is not done within this time, such as 2h. Default: no \
         deadline.",
    ),
    optional(
        Section::Workflow,
        "retention",
        ValueKind::Duration,
        "How long an ended job is kept, such as 30d. Default: the setting journal.retention.",
    ),
    optional(
        Section::Workflow,
        "bus",
        ValueKind::Bus,
        "The bus of the workflow's steps, by its name in the manager's settings. Default: the \
         setting bus.",
    ),
    optional(
        Section::Workflow,
        "limit",
        ValueKind::Mapping(Section::JobLimit),
        "The limit of which each job holds a place until its end. Default: none.",
    ),
    optional(
        Section::Workflow,
        "label",
        ValueKind::Key,
        "A CEL expression over job and steps: what people call a job, such as job.title. Default: \
         its id.",
    ),
    optional(
        Section::Workflow,
        "columns",
        ValueKind::Columns,
        "CEL expressions over job and steps by which people find jobs, such as { order: job.order \
         }. Default: none.",
    ),
    required(
        Section::JobLimit,
        "use",
        ValueKind::Name,
        "The name of the limit. Its key is evaluated over the job's message.",
    ),
    optional(
        Section::JobLimit,
        "then",
        ValueKind::Choice(&["wait", "refuse", "replace", "latest"]),
        "What happens to a job for which there is no place: it waits; or it is not created; or \
         the oldest job that has a place is cancelled for it; or it waits, and older jobs that \
         wait are cancelled. Default: wait.",
    ),
    optional(
        Section::JobLimit,
        "delay",
        ValueKind::PositiveDuration,
        "With `then: latest`: a job begins so long after it was created, unless a newer one has \
         come. Default: at once.",
    ),
    optional(
        Section::JobLimit,
        "waitAtMost",
        ValueKind::PositiveDuration,
        "A job that waits for its place for longer than this, such as 1h, has failed. Default: it \
         waits for ever.",
    ),
    required(Section::Task, "name", ValueKind::Name, "The name, unique in the workflow."),
    required(
        Section::Task,
        "itemListKey",
        ValueKind::Text,
        "The key of the list in the step's input: a child job starts for each item, and the \
         output has the list of their results.",
    ),
    optional(
        Section::Task,
        "itemKey",
        ValueKind::Text,
        "The key of one item in the message of a child job. Default: the singular of itemListKey.",
    ),
    optional(
        Section::Task,
        "maxConcurrency",
        ValueKind::Integer { min: 1, max: u32::MAX as u64 },
        "How many child jobs of one step are under way at once. Default: the setting \
         fanout.window.",
    ),
    required(
        Section::Task,
        "steps",
        ValueKind::MappingList { section: Section::Step, min: 1, max: STEPS_MAX },
        "The steps.",
    ),
    optional(
        Section::Task,
        "tolerate",
        ValueKind::Tolerance,
        "How many child jobs may fail before the step does: a number, or a share such as 10%, \
         rounded down. Default: 0.",
    ),
    required(Section::Step, "name", ValueKind::Name, "The name, unique in the workflow or task."),
    optional(
        Section::Step,
        "queue",
        ValueKind::Queue,
        "The queue that the step's messages go to, or the address of a web service that is called, \
         https://…. Default: the step's name.",
    ),
    optional(
        Section::Step,
        "bus",
        ValueKind::Bus,
        "The bus that has the queue, by its name in the manager's settings. Default: that of the \
         workflow.",
    ),
    optional(
        Section::Step,
        QUEUE_TYPE_KEY,
        ValueKind::Choice(&["classic", "quorum"]),
        "The type with which the queue is declared where it is missing; only over AMQP. Default: \
         that of the workflow.",
    ),
    optional(
        Section::Step,
        QUEUE_ARGUMENTS_KEY,
        ValueKind::QueueArguments,
        "The arguments with which the queue is declared, such as { x-max-priority: 9 }. Default: \
         those of the workflow.",
    ),
    optional(
        Section::Step,
        "task",
        ValueKind::Name,
        "Starts this task of the workflow once for each item of a list, instead of sending a \
         message.",
    ),
    optional(
        Section::Step,
        "depends",
        ValueKind::Dependencies,
        "The steps that this one waits for. Their outputs are merged into its input; if several \
         have the same key, the first counts. Default: none, its input is the job's message.",
    ),
    optional(
        Section::Step,
        "priority",
        ValueKind::Integer { min: 0, max: PRIORITY_MAX },
        "The AMQP message priority. It works only on a quorum queue, or on one declared with \
         x-max-priority.",
    ),
    optional(
        Section::Step,
        "timeout",
        ValueKind::PositiveDuration,
        "An attempt without a reply within this time, such as 30s or 5m, has failed. It counts \
         from when workers can have the message. For a step with a task: it is not done within \
         this time. Default: none.",
    ),
    optional(
        Section::Step,
        "startWithin",
        ValueKind::PositiveDuration,
        "An attempt whose message no worker has taken within this time, such as 30s or 5m, has \
         failed. Over AMQP and Kafka: that the broker has not taken. Default: none.",
    ),
    optional(
        Section::Step,
        "waitAtMost",
        ValueKind::PositiveDuration,
        "A step that waits for its limits for longer than this, such as 1h, has failed. Default: \
         it waits for ever.",
    ),
    optional(
        Section::Step,
        "retry",
        ValueKind::Mapping(Section::Retry),
        "When and how often a failed attempt is followed by another. Default: never.",
    ),
    optional(
        Section::Step,
        "when",
        ValueKind::Condition,
        "A CEL expression over input, job and steps. False when the step is about to start: the \
         step is skipped and counts as done.",
    ),
    optional(
        Section::Step,
        "cancelWhen",
        ValueKind::Condition,
        "A CEL expression over input, job and steps. True while the step waits or runs: the step \
         is cancelled and counts as done.",
    ),
    optional(
        Section::Step,
        "onFailure",
        ValueKind::Choice(&["fail", "continue"]),
        "What happens when the attempts of a step are spent: the job fails, or the step counts as \
         done without an output. Default: fail.",
    ),
    optional(
        Section::Step,
        "external",
        ValueKind::Boolean,
        "No message is sent: the step completes by a call of the HTTP API. Default: false.",
    ),
    optional(
        Section::Step,
        "statusKey",
        ValueKind::Text,
        "The key of the reply whose text is the step's status.",
    ),
    optional(
        Section::Step,
        "statuses",
        ValueKind::NonEmptyTextList(STATUSES_MAX),
        "The statuses allowed; the first is the status while the step runs, another word fails \
         the attempt. Default: PENDING, then any.",
    ),
    optional(
        Section::Step,
        "skippedStatus",
        ValueKind::TextOrEmpty,
        "The status of a skipped step. Default: SKIPPED.",
    ),
    optional(
        Section::Step,
        "cancelledStatus",
        ValueKind::TextOrEmpty,
        "The status of a cancelled step. Default: CANCELLED.",
    ),
    optional(
        Section::Step,
        "replyUsers",
        ValueKind::NonEmptyTextList(REPLY_USERS_MAX),
        "The users whose replies count: users of RabbitMQ, or names of the manager's tokens. \
         Default: everybody's.",
    ),
    optional(
        Section::Step,
        "limit",
        ValueKind::LimitNames,
        "The limits under which the step's messages are sent: a message waits until all of them \
         have room. Default: none.",
    ),
    required(Section::Limit, "name", ValueKind::Name, "The name, unique in a virtual host."),
    optional(
        Section::Limit,
        "rate",
        ValueKind::Rate,
        "How many messages are sent, or jobs begin, in a period at most, such as 100/s, 20/m or \
         1/15m. Default: any number.",
    ),
    optional(
        Section::Limit,
        "burst",
        ValueKind::Integer { min: 1, max: BURST_MAX },
        "How many messages the rate lets through at once after a pause. Default: those of 50 ms, \
         at least 1.",
    ),
    optional(
        Section::Limit,
        "concurrency",
        ValueKind::Integer { min: 1, max: CONCURRENCY_MAX },
        "How many steps have their message sent and not settled at once, or how many jobs have \
         begun and not ended. Default: any number.",
    ),
    optional(
        Section::Limit,
        "key",
        ValueKind::Key,
        "A CEL expression over job and input: the limit counts for each value by itself, such as \
         job.customer. Default: it counts for all together.",
    ),
    optional(
        Section::Limit,
        "fair",
        ValueKind::Key,
        "A CEL expression over job and input: the values take turns, such as job.customer. \
         Default: who waits longest is first.",
    ),
    required(
        Section::Retry,
        "attempts",
        ValueKind::Integer { min: 1, max: ATTEMPTS_MAX },
        "How often the step is tried in all, the first attempt counted.",
    ),
    optional(
        Section::Retry,
        "backoff",
        ValueKind::Duration,
        "The longest pause before the second attempt; the pause is random up to it. Default: 1s.",
    ),
    optional(
        Section::Retry,
        "factor",
        ValueKind::Factor(FACTOR_MAX),
        "The factor by which the longest pause grows from one attempt to the next. Default: 2.",
    ),
    optional(
        Section::Retry,
        "maxBackoff",
        ValueKind::Duration,
        "The limit of the longest pause. Default: 5m.",
    ),
    optional(
        Section::File,
        "schedules",
        ValueKind::MappingList { section: Section::Schedule, min: 0, max: SCHEDULES_MAX },
        "When jobs start by themselves.",
    ),
    required(
        Section::Schedule,
        "name",
        ValueKind::Name,
        "The name, unique over all files in each virtual host.",
    ),
    required(Section::Schedule, "workflow", ValueKind::Name, "The workflow that it starts."),
    optional(
        Section::Schedule,
        "cron",
        ValueKind::Text,
        "Minute, hour, day of the month, month, day of the week; of six, seconds come first.",
    ),
    optional(
        Section::Schedule,
        "zone",
        ValueKind::Text,
        "The time zone of the cron expression, such as Europe/Berlin. Default: UTC.",
    ),
    optional(
        Section::Schedule,
        "every",
        ValueKind::PositiveDuration,
        "The interval between slots, at least 1s, counted from 1970-01-01 00:00 UTC.",
    ),
    optional(Section::Schedule, "message", ValueKind::Message, "The message. Default: {}."),
    optional(
        Section::Schedule,
        "missed",
        ValueKind::Choice(&["none", "last", "all"]),
        "Which slots start that passed while no manager ran. Default: last.",
    ),
    optional(
        Section::Schedule,
        "overlap",
        ValueKind::Choice(&["allow", "skip", "wait", "replace"]),
        "What happens to a slot while an earlier job runs. Default: skip.",
    ),
    optional(
        Section::Schedule,
        "jitter",
        ValueKind::PositiveDuration,
        "Each job starts up to this long after its slot; the same for the same slot.",
    ),
    optional(
        Section::Schedule,
        "deadline",
        ValueKind::PositiveDuration,
        "A job that has not started so long after its slot does not start any more.",
    ),
];

/// The prefix of top-level keys that are not checked. Files may use them for anchors, and other
/// programs for their own data.
pub(super) const EXTENSION_PREFIX: &str = "x-";

impl Section {
    /// Returns the noun for a section in messages, with its article.
    pub(super) fn noun(self) -> &'static str {
        match self {
            Section::File => "a workflow file",
            Section::Workflow => "a workflow",
            Section::Task => "a task",
            Section::Step => "a step",
            Section::Retry => "a retry",
            Section::Limit => "a limit",
            Section::JobLimit => "the limit of a workflow",
            Section::Schedule => "a schedule",
        }
    }

    /// Returns an example of a valid mapping, for messages.
    pub(super) fn example(self) -> &'static str {
        match self {
            Section::File => "workflows: [ .. ]",
            Section::Workflow => "{ name: .., steps: [ .. ] }",
            Section::Task => "{ name: .., itemListKey: .., steps: [ .. ] }",
            Section::Step => "{ name: .. }",
            Section::Retry => "{ attempts: 3 }",
            Section::Limit => "{ name: .., rate: 100/s }",
            Section::JobLimit => "{ use: .., then: wait }",
            Section::Schedule => "{ name: .., workflow: .., every: 1h }",
        }
    }
}
