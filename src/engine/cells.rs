//! Computes the cells of a job: the values of its label and its columns.
//!
//! A cell follows from the state of its job alone. So it is computed when something that it reads
//! has changed, and is the same when the job is rebuilt from its record.

use super::cell::{CELL_BYTES_MAX, Cell, CellKind, NamedCell};
use super::columns::{Columns, LABEL, SLOT_COLUMNS};
use super::conditions::to_scope_step;
use super::entry::{AffectedSteps, Entry, JobEntry};
use super::expression::{DecisionBudget, Expression, Scope, ScopeStep};
use super::id::StepIndex;
use super::job::Job;
use super::json::Message;
use super::schedule::ScheduledSlot;
use super::state::{JobState, StepState};
use super::text::is_unsafe_to_print;
use std::collections::BTreeSet;
use std::sync::Arc;

/// The most that the computation of one cell may cost, so that those of all columns together take
/// about as much as the conditions of a decision.
const CELL_COST_MAX: u64 = 50_000;

/// What ends a label that is cut.
const ELLIPSIS: char = '…';

/// The cells that a decision has changed.
#[derive(Debug, Default)]
pub struct CellChanges {
    /// The cells.
    pub cells: Vec<NamedCell>,
    /// How many of them are empty because their values could not be computed.
    pub errors: u32,
}

/// The cells of a job for the columns of another definition.
#[derive(Debug, Default)]
pub struct RefilledCells {
    /// The cells, also those that are empty.
    pub cells: Vec<NamedCell>,
    /// Whether one is empty because the job does not have a step that it reads.
    pub lacks_step: bool,
}

impl Job {
    /// Returns the cells of a root job, the label first; none of a child job.
    pub fn cells(&self) -> Vec<NamedCell> {
        if self.origin().parent.is_some() {
            return Vec::new();
        }
        let columns = self.definition().columns.iter();
        columns
            .map(|(name, value)| (name.into(), self.compute_cell(name, value).ok().flatten()))
            .collect()
    }

    /// Returns the cells of a root job for the columns of another definition of its workflow. Cells
    /// that read a step which the job does not have are empty.
    pub fn refilled_cells(&self, columns: &Columns) -> RefilledCells {
        let mut refilled = RefilledCells::default();
        for (name, value) in columns.iter() {
            let lacks = |step: &String| self.graph().find_index(step).is_none();
            let lacks_step = value.steps().iter().any(lacks);
            refilled.lacks_step |= lacks_step;
            let cell = (!lacks_step).then(|| self.compute_cell(name, value).ok().flatten());
            refilled.cells.push((name.into(), cell.flatten()));
        }
        refilled
    }

    /// Returns the cells of all columns that a job has in SQL: those of [`Job::cells`], and its
    /// schedule and slot.
    pub fn sql_cells(&self) -> Vec<NamedCell> {
        let is_root = self.origin().parent.is_none();
        let slot = is_root.then(|| self.slot_cells());
        self.cells().into_iter().chain(slot.into_iter().flatten()).collect()
    }

    /// Returns the schedule and the slot for which the job was started; none if no schedule did.
    fn slot_cells(&self) -> impl Iterator<Item = NamedCell> {
        let slot = self.origin().slot.as_deref().into_iter();
        slot.flat_map(|ScheduledSlot { schedule, slot }| {
            let texts = [schedule.clone(), slot.to_rfc3339().into()];
            let cells = texts.map(|text| Some(Cell { kind: CellKind::Text, text }));
            SLOT_COLUMNS.map(Arc::from).into_iter().zip(cells)
        })
    }

    /// Returns the cells that `entries`, which the job has applied, may have changed.
    pub(super) fn changed_cells(&self, entries: &[Entry]) -> CellChanges {
        let mut changes = CellChanges::default();
        let origin = self.origin();
        let has_cells = !self.definition().columns.is_empty() || origin.slot.is_some();
        if origin.parent.is_some() || !has_cells {
            return changes;
        }
        let is_new = entries.iter().any(|e| matches!(e, Entry::Job(JobEntry::Created { .. })));
        changes.cells.extend(is_new.then(|| self.slot_cells()).into_iter().flatten());
        let (mut affects_all, mut affected) = (is_new, BTreeSet::new());
        for entry in entries {
            match entry.affected_steps() {
                AffectedSteps::None => {}
                AffectedSteps::One(step) => {
                    affected.insert(step);
                }
                AffectedSteps::All => affects_all = true,
            }
        }
        for (name, value) in self.definition().columns.iter() {
            let reads = |step: &StepIndex| value.reads_step(&self.graph().step(*step).name);
            let is_affected =
                is_new || (value.reads_steps() && (affects_all || affected.iter().any(reads)));
            if !is_affected {
                continue;
            }
            let result = self.compute_cell(name, value);
            changes.errors += u32::from(result.is_err() && self.has_source(value));
            let cell = result.ok().flatten();
            // The cells of a new job are empty anyway.
            if cell.is_some() || !is_new {
                changes.cells.push((name.into(), cell));
            }
        }
        changes
    }

    /// Returns whether all that a column reads is there: before that it is empty, and after that
    /// what cannot be computed is an error.
    fn has_source(&self, value: &Expression) -> bool {
        if value.reads_steps() && value.steps().is_empty() {
            return self.state() == JobState::Completed;
        }
        let steps = value.steps().iter().filter_map(|name| self.graph().find_index(name));
        steps.into_iter().all(|step| self.step_state(step) == StepState::Completed)
    }

    fn compute_cell(&self, name: &str, value: &Expression) -> Result<Option<Cell>, String> {
        let mut budget = DecisionBudget::of_cost(CELL_COST_MAX);
        let cell = value.evaluate_cell(&CellScope(self), &mut budget)?;
        let Some(Cell { kind, text }) = cell else { return Ok(None) };
        let text = if name == LABEL { to_label(&text) } else { check_cell(text)? };
        // A label is read, not compared.
        let kind = if name == LABEL { CellKind::Text } else { kind };
        Ok((!text.is_empty()).then_some(Cell { kind, text }))
    }
}

/// Returns a text as a label: of one line, without what could hide or reorder other text, and cut.
fn to_label(text: &str) -> Arc<str> {
    let mut label = String::new();
    for character in text.trim().chars() {
        let character = if is_unsafe_to_print(character) { ' ' } else { character };
        if label.len() + character.len_utf8() > CELL_BYTES_MAX - ELLIPSIS.len_utf8() {
            // What fits without an ellipsis is left as it is.
            if text.trim().len() > CELL_BYTES_MAX {
                label.push(ELLIPSIS);
                break;
            }
        }
        label.push(character);
    }
    label.trim().into()
}

/// Checks that a text can be a cell that is compared with others.
fn check_cell(text: Arc<str>) -> Result<Arc<str>, String> {
    if text.len() > CELL_BYTES_MAX {
        return Err(format!(
            "evaluates to a text of {} bytes, and a column has at most {CELL_BYTES_MAX}",
            text.len()
        ));
    }
    if text.chars().any(is_unsafe_to_print) {
        return Err("evaluates to a text with control characters".to_owned());
    }
    Ok(text)
}

/// The variables of columns: the job's message, and its steps.
struct CellScope<'a>(&'a Job);

impl Scope for CellScope<'_> {
    fn input(&self) -> Message {
        self.0.message().clone()
    }

    fn job(&self) -> &Message {
        self.0.message()
    }

    fn step(&self, name: &str) -> Option<ScopeStep<'_>> {
        self.0.graph().find_index(name).map(|index| to_scope_step(self.0, index))
    }

    fn steps(&self) -> Vec<ScopeStep<'_>> {
        self.0.graph().indices().map(|index| to_scope_step(self.0, index)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::columns::Column;
    use crate::{
        Context, Decision, Definition, Dependency, Graph, Input, JobId, Limits, Origin, Reply,
        Sender, Step, Timestamp,
    };

    const LIMITS: Limits = Limits {
        step_message_bytes_max: 1 << 20,
        reply_bytes_max: 1 << 20,
        depth_max: 3,
        window: 3,
        window_bytes: 1 << 26,
    };

    fn context() -> Context<'static> {
        Context { now: Timestamp(1), limits: &LIMITS, pauses: None, spare: None }
    }

    /// Creates a job of two steps, `a` and then `b`, with these columns and this message.
    fn create(columns: &[(&str, &str)], message: &str) -> (Job, Decision) {
        let after_a =
            Step { depends: vec![Dependency::Step(StepIndex(0))], ..Step::with_name("b") };
        let graph = Graph::new("w".to_owned(), None, vec![Step::with_name("a"), after_a]);
        let mut definition = Definition::new("w", vec![graph]);
        for (name, value) in columns {
            let value = Expression::parse(value).expect(value);
            if *name == LABEL {
                definition.columns.label = Some(value);
            } else {
                definition.columns.list.push(Column { name: (*name).into(), value });
            }
        }
        let origin =
            Origin::for_root_job(JobId::from_call(&[]), Arc::new(definition), Timestamp(0));
        Job::create(origin, Message::parse(message.as_bytes()).expect("a message"), &context())
    }

    fn reply(job: &mut Job, step: &str, body: &'static str) -> Decision {
        let reply = Reply::Result(body.into());
        let input =
            Input::Reply { step: step.to_owned(), attempt: None, reply, from: Sender::Unknown };
        job.handle_input(input, &context()).expect("the reply is accepted")
    }

    fn render(changes: &CellChanges) -> String {
        let render = |(name, cell): &NamedCell| {
            let cell = serde_json::to_string(cell).expect("it can be serialized");
            format!("{name}={cell}")
        };
        changes.cells.iter().map(render).collect::<Vec<_>>().join(" ")
    }

    fn render_all(job: &Job) -> String {
        let cells = job.sql_cells().into_iter().filter(|(_, cell)| cell.is_some()).collect();
        render(&CellChanges { cells, errors: 0 })
    }

    #[test]
    fn a_cell_is_computed_when_its_source_is_there_and_follows_it() {
        let columns = [
            ("label", "job.title"),
            ("order", "job.order"),
            ("vip", "job.vip"),
            ("total", "double(steps.a.output.cents) / 2.0"),
            ("none", "job.absent"),
            ("null", "job.nothing"),
        ];
        let message = r#"{"title":"Order 4711","order":4711,"vip":true,"nothing":null}"#;
        let (mut job, decision) = create(&columns, message);
        assert_eq!(render(&decision.cells), "label=\"Order 4711\" order=4711 vip=true");
        assert_eq!(
            decision.cells.errors, 1,
            "job.absent is an error, and the total only not there"
        );
        let decision = reply(&mut job, "a", r#"{"cents":25}"#);
        assert_eq!(render(&decision.cells), "total=12.5");
        assert_eq!(decision.cells.errors, 0);
        let decision = reply(&mut job, "b", "{}");
        assert_eq!(render(&decision.cells), "", "b changes no column");
        assert_eq!(render_all(&job), "label=\"Order 4711\" order=4711 vip=true total=12.5");
        let rerun = crate::Operation::Rerun { step: "a".to_owned(), only_failed_items: false };
        let decision =
            job.handle_input(Input::from_request(rerun), &context()).expect("it is rerun");
        assert_eq!(render(&decision.cells), "total=null", "the output is gone");
        assert_eq!(decision.cells.errors, 0);
        let decision = reply(&mut job, "a", r#"{"cents":"many"}"#);
        assert_eq!(render(&decision.cells), "total=null");
        assert_eq!(decision.cells.errors, 1);
    }

    #[test]
    fn a_value_is_bounded_and_of_a_type_that_can_be_compared() {
        let long = "é".repeat(1_000);
        let message = format!(
            r#"{{"long":"{long}","huge":"{}","fits":"{}","line":"a\nb\u202e\u0000c","list":[1],
                "markup":"<b>&","whole":3.0,"large":1e300}}"#,
            "x".repeat(2 << 20),
            "y".repeat(CELL_BYTES_MAX)
        );
        let label = |value: &str| {
            create(&[("label", value)], &message).0.cells().pop().and_then(|(_, cell)| cell)
        };
        let text = |value: &str| label(value).map_or(String::new(), |cell| cell.text.to_string());
        assert_eq!(text("job.long"), format!("{}…", "é".repeat(126)));
        assert_eq!(text("job.huge"), "", "what is too long to be looked at is empty");
        assert_eq!(text("job.fits"), "y".repeat(CELL_BYTES_MAX));
        assert_eq!(text("job.line"), "a b  c");
        assert_eq!(text("job.markup"), "<b>&");
        let column = |value: &str| render_all(&create(&[("c", value)], &message).0);
        assert_eq!(column("job.long"), "");
        assert_eq!(column("job.line"), "");
        assert_eq!(column("job.list"), "");
        assert_eq!(column("job.fits + 'z'"), "");
        assert_eq!(column("job.whole"), "c=3");
        assert_eq!(column("job.large"), "c=1e+300");
        assert_eq!(column("job.list[0] == 1"), "c=true");
        assert_eq!(column("''"), "");
    }

    #[test]
    fn a_job_of_a_schedule_has_its_schedule_and_its_slot_since_it_is_new() {
        let slot =
            ScheduledSlot { schedule: "nightly".into(), slot: Timestamp(86_400_000_000_000) };
        let entry = JobEntry::Created {
            message: Some(Message::parse(b"{}").expect("a message")),
            deadline: None,
            trace: None,
            trace_state: None,
            starts_at: None,
            slot: Some(Arc::new(slot)),
        };
        let (mut job, _) = create(&[("order", "job.order")], "{}");
        job.evolve(&Entry::Job(entry.clone()), Timestamp(1));
        let expected = "schedule=\"nightly\" slot=\"1970-01-02T00:00:00.000Z\"";
        assert_eq!(render(&job.changed_cells(&[Entry::Job(entry)])), expected);
        assert_eq!(render_all(&job), expected);
        let decision = reply(&mut job, "a", "{}");
        assert_eq!(render(&decision.cells), "", "they do not change");
    }

    #[test]
    fn a_child_job_and_a_workflow_without_columns_have_none() {
        let (job, decision) = create(&[], "{}");
        assert_eq!((render(&decision.cells), render_all(&job)), (String::new(), String::new()));
    }
}
