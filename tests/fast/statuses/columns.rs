//! Which table a workflow has, and which columns its steps get.

use super::*;
use workflow_manager::journal::{SearchOrder, SearchRecords};

#[test]
fn a_table_is_there_and_empty_before_the_first_job() {
    let place = Place::new();
    let _store = place.open(&[&chain("job-application", &["application", "background-check"])]);
    let columns = place.rows(
        "SELECT name, type, \"notnull\" FROM pragma_table_info('status_job-application') \
         ORDER BY cid",
    );
    let names: Vec<&str> = columns.iter().map(|column| column[0].as_str()).collect();
    let (of_job, of_slot) = (["job", "state", "created", "updated"], ["schedule", "slot"]);
    assert_eq!(names, [&of_job[..], &["application", "background-check"], &of_slot].concat());
    let is_filled = |column: &Vec<String>| column[1] == "TEXT" && column[2] == "1";
    assert!(columns[..6].iter().all(is_filled), "{columns:?}");
    assert!(
        place
            .rows(r#"select * from "status_job-application" where "background-check" = 'FAILED'"#)
            .is_empty()
    );
    let plan = place.rows(
        "explain query plan select * from \"status_job-application\" where \"background-check\" = \
         'FAILED'",
    );
    assert!(plan[0].join(" ").contains("USING INDEX"), "{plan:?}");
}

#[test]
fn a_new_step_gets_a_column_and_one_that_is_gone_keeps_its_own() {
    let place = Place::new();
    let (old, new) = (chain("w", &["a", "b"]), chain("w", &["A", "c"]));
    let mut store = place.open(&[&old]);
    let mut running = Live::create(1, &old);
    running.commit(&mut store);
    drop(store);
    let mut store = place.open(&[&new]);
    assert_eq!(place.rows("SELECT a, b, c FROM status_w"), [["PENDING", "", ""]]);
    // The job that runs keeps its definition.
    running.reply("a", "{}").commit(&mut store);
    let mut other = Live::create(2, &new);
    other.reply("A", "{}").commit(&mut store);
    assert_eq!(
        place.rows("SELECT a, b, c FROM status_w"),
        [["COMPLETED", "PENDING", ""], ["COMPLETED", "", "PENDING"]]
    );
    let plan = place.rows("explain query plan select * from status_w where c = 'FAILED'");
    assert!(plan[0].join(" ").contains("USING INDEX"), "{plan:?}");
    // Made anew, it has the columns of all the jobs that there are.
    drop(store);
    place.change("DROP TABLE status_w");
    drop(place.open(&[&new]));
    assert_eq!(
        place.rows("SELECT a, b, c FROM status_w"),
        [["COMPLETED", "PENDING", ""], ["COMPLETED", "", "PENDING"]]
    );
}

#[test]
fn a_definition_that_was_not_related_is_when_its_job_is_created() {
    let place = Place::new();
    let definition = chain("w", &["a", "rowid"]);
    let mut store = place.open(&[]);
    let (mut first, mut second) = (Live::create(1, &definition), Live::create(2, &definition));
    first.reply("a", "{}").commit(&mut store);
    second.commit(&mut store);
    first.reply("rowid", "{}").commit(&mut store);
    assert_eq!(
        place.rows("SELECT job, state, a, \"rowid\" FROM status_w ORDER BY _rowid_"),
        [first.row(), second.row()]
    );
    drop(store);
    assert_as_rebuilt(&place, &definition);
    // SQLite adds no column of a name that it has for its own row numbers.
    let later = chain("w", &["a", "rowid", "OID", "b"]);
    let mut store = place.open(&[&later]);
    let mut third = Live::create(3, &later);
    third.reply("a", "{}").reply("rowid", "{}").commit(&mut store);
    assert_eq!(
        place.rows("SELECT job, state, a, \"rowid\", oid, b FROM status_w WHERE _rowid_ = 3"),
        [third.row()]
    );
    assert_eq!(place.rows("SELECT _rowid_ FROM status_w ORDER BY 1"), [["1"], ["2"], ["3"]]);
    let filter = JobFilter {
        workflow: Some("w".to_owned()),
        statuses: vec![("rowid".to_owned(), "COMPLETED".to_owned())],
        ..JobFilter::default()
    };
    let found =
        place.reader().search(&filter, SearchOrder::NewestFirst, NEWEST_CURSOR, 9).expect("reads");
    assert_eq!(found.iter().map(|hit| hit.number).collect::<Vec<_>>(), [3, 1]);
}

#[test]
fn each_workflow_has_its_own_table_whatever_its_name() {
    let place = Place::new();
    let in_vhost =
        |vhost: &str, name: &str| Definition { vhost: vhost.to_owned(), ..chain(name, &["only"]) };
    let definitions = [
        chain("w", &["a"]),
        in_vhost("/", "w"),
        in_vhost(r#"it's "x" of q"#, "w"),
        chain("w_by_id", &["status_w"]),
        in_vhost("", "jobs"),
        in_vhost("prod/eu", "entries"),
    ];
    let all: Vec<&Definition> = definitions.iter().collect();
    let mut store = place.open(&all);
    let mut lives = Vec::new();
    for (number, definition) in (1..).zip(&definitions) {
        let mut live = Live::create(number, definition);
        live.commit(&mut store);
        let table = format!("status_{}", definition.full_name()).replace('"', "\"\"");
        let steps = &definition.graph().steps[0].name;
        assert_eq!(
            place.rows(&format!("SELECT job, state, \"{steps}\" FROM \"{table}\"")),
            [live.row()],
            "{table}"
        );
        let reader = place.reader();
        let columns =
            reader.load_status_columns(&definition.full_name()).expect("reads").expect("is there");
        let rows = reader
            .load_statuses(
                &definition.full_name(),
                &columns,
                &StatusFilter::default(),
                NEWEST_CURSOR,
                10,
            )
            .expect("reads");
        assert_eq!((rows.len(), rows[0].job.as_str()), (1, &*live.job.id().to_string()));
        lives.push(live);
    }
    drop(store);
    let mut store = place.open(&all);
    assert_eq!(store.recover().expect("recovers").len(), definitions.len());
    lives[2]
        .take(Input::from_request(Operation::Cancel { reason: "a test".into() }))
        .commit(&mut store);
    store.delete_jobs(&[3], u32::MAX).expect("deletes");
    let left: usize = definitions
        .iter()
        .map(|d| {
            place
                .rows(&format!("SELECT * FROM \"status_{}\"", d.full_name().replace('"', "\"\"")))
                .len()
        })
        .sum();
    assert_eq!(left, definitions.len() - 1);
}

#[test]
fn names_that_differ_in_case_share_a_table_and_lose_nothing() {
    let place = Place::new();
    let (old, new) = (chain("Order", &["a"]), chain("order", &["a", "b"]));
    let mut store = place.open(&[&old]);
    let mut first = Live::create(1, &old);
    first.commit(&mut store);
    drop(store);
    let mut store = place.open(&[&new]);
    let mut second = Live::create(2, &new);
    second.commit(&mut store);
    first.reply("a", "{}").commit(&mut store);
    let both = [["COMPLETED", ""], ["PENDING", ""]];
    assert_eq!(place.rows("SELECT a, b FROM status_order"), both);
    drop(store);
    place.change("DROP TABLE status_order");
    drop(place.open(&[&new]));
    assert_eq!(place.rows("SELECT a, b FROM status_order"), both);
}

#[test]
fn more_columns_than_have_an_index() {
    let place = Place::new();
    let names: Vec<String> = (0..1_000).map(|at| format!("s{at}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let definition = chain("w", &names);
    let mut store = place.open(&[&definition]);
    let mut live = Live::create(1, &definition);
    live.reply("s0", "{}").commit(&mut store);
    let indexes = place
        .rows("SELECT count(*) FROM sqlite_schema WHERE type = 'index' AND tbl_name = 'status_w'");
    assert_eq!(indexes, [["66"]]);
    assert_eq!(
        place.rows("SELECT s0, s1, s999 FROM status_w WHERE s99 = ''"),
        [["COMPLETED", "PENDING", ""]]
    );
}

#[test]
fn a_step_beyond_what_a_table_can_have_gets_no_column() {
    let place = Place::new();
    drop(place.open(&[]));
    // As a long life of changing definitions leaves it.
    let columns: String =
        (0..1_899).map(|at| format!(", s{at} TEXT NOT NULL DEFAULT ''")).collect();
    let own =
        "job TEXT NOT NULL, state TEXT NOT NULL, created TEXT NOT NULL, updated TEXT NOT NULL";
    place.change(&format!("CREATE TABLE status_w({own}{columns}) STRICT"));
    let definition = chain("w", &["t0", "t1", "t2"]);
    let mut store = place.open(&[&definition]);
    let mut live = Live::create(2, &definition);
    live.commit(&mut store);
    live.take(Input::from_request(Operation::Cancel { reason: "enough".into() }))
        .commit(&mut store);
    assert_eq!(place.rows("SELECT state, s0, t0 FROM status_w"), [["cancelled", "", "CANCELLED"]]);
    assert_eq!(place.rows("SELECT count(*) FROM pragma_table_info('status_w')"), [["1904"]]);
}
