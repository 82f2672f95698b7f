//! People know jobs by their labels, and find them by their columns.

use actix_web::http::StatusCode;
use rusqlite::Connection;
use serde_json::{Value, json};
use std::path::Path;
use support::api::Api;
use support::manager::TestManager;
use support::waits::within;

const WORKFLOWS: &str = "
workflows:
  - name: orders
    label: job.title
    columns: { order: job.order, select: job.select, total: steps.invoice.output.cents }
    steps: [ { name: invoice } ]
  - name: plain
    steps: [ { name: invoice } ]
";

/// What an order says that means no harm, and still might do some.
fn hostile() -> Value {
    json!({
        "title": "<b>Order</b> 4711\n\u{1b}[31m", "order": 4711, "select": "a'b\"c--",
        "cents": 12.5, "k": "x".repeat(1 << 20)
    })
}

/// Waits until all orders are completed, and returns them, the newest first.
async fn completed(api: &Api, count: usize) -> Vec<Value> {
    let are_all = |found: &Value| found["jobs"].as_array().is_some_and(|jobs| jobs.len() == count);
    let path = "/api/jobs/search?workflow=orders&state=completed";
    api.until(path, are_all).await["jobs"].as_array().cloned().expect("a list")
}

async fn found(api: &Api, query: &str) -> Vec<String> {
    let found = api.get_json(&format!("/api/jobs/search?count=true&{query}")).await;
    let jobs = found["jobs"].as_array().expect("a list");
    assert_eq!(found["count"], jobs.len(), "{query}");
    jobs.iter().map(|job| job["job"].as_str().expect("an id").to_owned()).collect()
}

#[test]
fn jobs_are_shown_and_found_by_their_labels_and_columns() {
    TestManager::with(WORKFLOWS).echo(["invoice"]).serve(|api| async move {
        let first = api.create_job("orders", &hostile().to_string()).await;
        let second = api.create_job("orders", r#"{"title":"another","order":"4712"}"#).await;
        let plain = api.create_job("plain", "{}").await;
        let rows = completed(&api, 2).await;
        let columns = json!({ "order": 4711, "select": "a'b\"c--", "total": 12.5 });
        let view = api.get_json(&format!("/api/job/{first}")).await;
        for shown in [&rows[1], &view] {
            assert_eq!(shown["label"], "<b>Order</b> 4711  [31m", "{shown}");
            assert_eq!(shown["columns"], columns);
        }
        assert_eq!(rows[0]["columns"], json!({ "order": "4712" }), "the others are empty");
        let view = api.get_json(&format!("/api/job/{plain}")).await;
        assert_eq!((view.get("label"), view.get("columns")), (None, None));

        assert_eq!(found(&api, "column.order=4711").await, [&*first]);
        assert_eq!(found(&api, "column.order=4712&workflow=orders").await, [&*second]);
        assert_eq!(found(&api, "column.select=a%27b%22c--&column.total=12.5").await, [&*first]);
        assert_eq!(found(&api, "label=%3CB%3EORDER").await, [&*first]);
        assert_eq!(found(&api, "label=%25").await, [""; 0], "it is no pattern");
        assert_eq!(found(&api, "column.order=4711&state=failed").await, [""; 0]);
        for (query, problem) in [
            ("column.ordr=1", "no workflow has a column \"ordr\"; did you mean \"order\"?"),
            (
                "workflow=orders&column.ordr=1",
                "workflow orders has no column \"ordr\"; did you mean",
            ),
            ("workflow=plain&column.order=1", "workflow plain has no column \"order\""),
            ("label=", "expected a text of 1 to 256 bytes"),
            (&format!("parent={first}&label=x"), "parent asks for child jobs"),
        ] {
            let refused = api.get(&format!("/api/jobs/search?{query}"), &[]).await;
            assert_eq!(refused.status, StatusCode::BAD_REQUEST, "{query}");
            assert!(refused.detail().contains(problem), "{query}: {}", refused.detail());
        }
        let bulk = api.post("/api/jobs/rerun?step=invoice&column.order=4711&dryRun=true", "").await;
        assert_eq!(bulk.json()["matched"], 1, "{}", bulk.text());
        assert_eq!(bulk.json()["jobs"][0]["columns"], columns);
        let bulk = api.post("/api/jobs/pause?column.order=4711", "").await.json();
        let refusal = &bulk["refusals"][0];
        let known = (refusal["job"].as_str(), refusal["label"].as_str());
        assert_eq!(known, (Some(&*first), Some("<b>Order</b> 4711  [31m")), "{bulk}");
        let refused = api.post("/api/jobs/cancel?column.ordr=4711&dryRun=true", "").await;
        let detail = refused.detail();
        assert!(detail.contains("did you mean \"order\"?"), "{detail}");

        // The sheet of statuses has them, as JSON and as CSV.
        let sheet = api.get_json("/api/status/orders").await;
        assert_eq!(sheet["rows"][1]["label"], "<b>Order</b> 4711  [31m");
        assert_eq!(sheet["rows"][1]["columns"], columns);
        assert_eq!(sheet["rows"][0]["columns"], json!({ "order": "4712" }));
        let csv = api.get("/api/status/orders", &[("Accept", "text/csv")]).await.text();
        let lines: Vec<&str> = csv.lines().collect();
        assert_eq!(lines[0], "job,state,created,updated,invoice,label,order,select,total");
        assert!(lines[1].ends_with(",COMPLETED,another,4712,,"), "{csv}");
        assert!(lines[2].ends_with(",4711,\"a'b\"\"c--\",12.5"), "{csv}");
        let sheet = api.get_json("/api/status/plain").await;
        assert_eq!((sheet["rows"][0].get("label"), sheet["rows"][0].get("columns")), (None, None));
        let metrics = api.get("/metrics", &[]).await.text();
        let errors = "workflow_column_errors_total{workflow=\"orders\"} 2";
        assert!(metrics.contains(errors), "one job has neither `select` nor a total");
    });
}

async fn start(text: &str, folder: &Path) -> (TestManager, Api) {
    let manager = TestManager::with(text).folder(folder).echo(["invoice"]).await;
    let api = Api::new(&manager).await;
    (manager, api)
}

/// Returns columns of the table of statuses of the orders, the oldest row first.
fn select_statuses(folder: &Path, columns: &str) -> Vec<Vec<Option<String>>> {
    let client = Connection::open(folder.join("j.db")).expect("opens");
    let sql = format!("SELECT {columns} FROM status_orders ORDER BY created");
    let mut statement = client.prepare(&sql).expect(columns);
    let width = statement.column_count();
    let rows = statement.query_map([], |row| (0..width).map(|at| row.get(at)).collect());
    rows.expect("rows").collect::<rusqlite::Result<_>>().expect("rows")
}

#[test]
fn columns_are_beside_the_steps_in_sql_and_change_with_the_file() {
    let folder = tempfile::tempdir().expect("a folder");
    let select = |columns: &str| select_statuses(folder.path(), columns);
    let texts = |row: &[&str]| -> Vec<Option<String>> {
        row.iter().map(|text| (!text.is_empty()).then(|| (*text).to_owned())).collect()
    };
    let before = "workflows: [ { name: orders, steps: [ { name: invoice }, { name: order } ] } ]";
    let without_clash = before.replace(", { name: order }", "");
    actix_rt::System::new().block_on(within("columns follow the file", async {
        let (manager, api) = start(&without_clash, folder.path()).await;
        api.create_job("orders", r#"{"order":1}"#).await;
        completed(&api, 1).await;
        manager.stop().await;
        assert_eq!(select("invoice"), [texts(&["COMPLETED"])]);

        let (manager, api) = start(WORKFLOWS, folder.path()).await;
        api.create_job("orders", &hostile().to_string()).await;
        let rows = completed(&api, 2).await;
        assert_eq!(rows[1].get("columns"), None, "a job keeps its definition");
        manager.stop().await;
        let all = "invoice, label, \"order\", \"select\", total";
        let of_new = texts(&["COMPLETED", "<b>Order</b> 4711  [31m", "4711", "a'b\"c--", "12.5"]);
        assert_eq!(select(all), [texts(&["COMPLETED", "", "", "", ""]), of_new.clone()]);

        // A later step with the name of a column that the table has gets none.
        let (manager, api) = start(before, folder.path()).await;
        let running = api.create_job("orders", "{}").await;
        let is_sent = |view: &Value| view["steps"][1]["state"] == "running";
        api.until(&format!("/api/job/{running}"), is_sent).await;
        assert_eq!(found(&api, "label=4711&workflow=orders").await.len(), 1, "an older one's");
        let sheet = api.get_json("/api/status/orders").await;
        for row in sheet["rows"].as_array().expect("rows") {
            let shown = (row.get("label"), row.get("columns"));
            assert_eq!(shown, (None, None), "the loaded definition has none");
        }
        manager.stop().await;
        assert_eq!(select(all)[1], of_new);
        assert_eq!(select("\"order\"").len(), 3);
    }));
}

#[test]
fn the_jobs_of_a_backfill_have_their_labels_once_they_are_there() {
    let text = "workflows: [ { name: orders, label: job.title, steps: [ { name: invoice } ] } ]\n\
                schedules: [ { name: often, workflow: orders, every: 1h, \
                               message: { title: Hourly } } ]";
    let folder = tempfile::tempdir().expect("a folder");
    actix_rt::System::new().block_on(within("slots are started", async {
        let (_manager, api) = start(text, folder.path()).await;
        let labels = async |query: &str| {
            let slots = "from=2026-01-01T00:00:00Z&to=2026-01-01T02:00:00Z";
            let path = format!("/api/schedule/often/backfill?{slots}&{query}");
            let told: Value = api.post(&path, "").await.json();
            let slots = told["slots"].as_array().expect("slots").iter();
            slots.map(|slot| slot.get("label").cloned()).collect::<Vec<_>>()
        };
        assert_eq!(labels("dryRun=true").await, [None, None], "nothing is there yet");
        let known = Some(json!("Hourly"));
        assert_eq!(labels("reason=gap").await, [known.clone(), known.clone()]);
        assert_eq!(labels("dryRun=true").await, [known.clone(), known]);
    }));
}

#[test]
fn the_schedule_and_the_slot_of_a_job_are_columns_in_sql() {
    let folder = tempfile::tempdir().expect("a folder");
    let select = |columns: &str| select_statuses(folder.path(), columns);
    let often = "workflows: [ { name: orders, steps: [ { name: invoice } ] } ]\n\
                 schedules: [ { name: often, workflow: orders, every: 1s } ]";
    let with_step = "workflows: [ { name: orders, steps: [ { name: invoice }, { name: Slot } ] } ]";
    actix_rt::System::new().block_on(within("jobs of a schedule", async {
        let (manager, api) = start(often, folder.path()).await;
        let by_hand = api.create_job("orders", "{}").await;
        let is_there = |found: &Value| found["jobs"][0]["job"].is_string();
        let path = "/api/jobs/search?schedule=often&state=completed";
        let first = api.until(path, is_there).await["jobs"][0]["job"].clone();
        let path = format!("/api/job/{}", first.as_str().expect("an id"));
        let of_slot = api.get_json(&path).await;
        manager.stop().await;
        let text = |key: &str| Some(of_slot[key].as_str().expect(key).to_owned());
        // In SQL, times have milliseconds.
        let slot = text("slot").map(|slot| slot.replace("000000Z", "Z"));
        let known = select("job, schedule, slot");
        assert!(known.contains(&vec![text("uuid"), text("schedule"), slot.clone()]), "{known:?}");
        assert!(known.contains(&vec![Some(by_hand), None, None]), "{known:?}");

        // A step of that name, even a later one, has the column.
        let (manager, api) = start(with_step, folder.path()).await;
        let running = api.create_job("orders", "{}").await;
        let is_sent = |view: &Value| view["steps"][1]["state"] == "running";
        api.until(&format!("/api/job/{running}"), is_sent).await;
        manager.stop().await;
        let known = select("job, schedule, slot");
        let empty = Some(String::new());
        assert!(known.contains(&vec![text("uuid"), text("schedule"), empty]), "{known:?}");
        let status = Some("PENDING".to_owned());
        assert!(known.contains(&vec![Some(running), None, status]), "{known:?}");
    }));
}

#[test]
fn old_jobs_get_the_columns_of_a_changed_file_page_by_page() {
    let folder = tempfile::tempdir().expect("a folder");
    let before = "workflows: [ { name: orders, steps: [ { name: invoice } ] } ]";
    let after = "
workflows:
  - name: orders
    label: job.title
    columns: { order: job.order, sent: steps.ship.output.sent }
    steps: [ { name: invoice }, { name: ship, external: true } ]
";
    actix_rt::System::new().block_on(within("old jobs have new columns", async {
        let (manager, api) = start(before, folder.path()).await;
        let mut ids = Vec::new();
        for order in 1..=5 {
            let message = json!({ "title": format!("Order {order}"), "order": order });
            ids.push(api.create_job("orders", &message.to_string()).await);
        }
        completed(&api, 5).await;
        manager.stop().await;

        let (manager, api) = start(after, folder.path()).await;
        let live = api.create_job("orders", r#"{"title":"Order 6","order":6}"#).await;
        assert_eq!(found(&api, "column.order=3").await, [""; 0]);
        let refill = async |query: &str| {
            let done = api.post(&format!("/api/workflows/orders/refill?{query}"), "").await;
            assert_eq!(done.status, StatusCode::OK, "{}", done.text());
            done.json()
        };
        let dry = refill("dryRun=true").await;
        let expected = json!({
            "operation": "refill", "workflow": "orders", "dryRun": true, "jobs": 6, "changed": 5,
            "withoutStep": 5, "busy": 0, "unreadable": 0, "definition": dry["definition"]
        });
        let hash = dry["definition"].as_str().expect("a hash");
        assert_eq!(api.get(&format!("/api/definition/{hash}"), &[]).await.status, StatusCode::OK);
        assert_eq!(dry, expected);
        assert_eq!(found(&api, "column.order=3").await, [""; 0], "nothing was done");

        let first = refill("limit=4").await;
        assert_eq!((&first["jobs"], &first["changed"]), (&json!(4), &json!(4)));
        assert_eq!(found(&api, "column.order=3").await, [&*ids[2]]);
        assert_eq!(found(&api, "column.order=5").await, [""; 0], "it is on the next page");
        let next = first["next"].as_str().expect("a cursor");
        let rest = refill(&format!("limit=4&cursor={next}&reason=new+file")).await;
        assert_eq!((&rest["jobs"], &rest["changed"]), (&json!(2), &json!(1)));
        assert_eq!(rest.get("next"), None);
        assert_eq!(found(&api, "label=order+5").await, [&*ids[4]]);
        let rows = api.get_json("/api/jobs/search?workflow=orders&order=oldest").await;
        assert_eq!(rows["jobs"][0]["label"], "Order 1");
        assert_eq!(rows["jobs"][0]["columns"], json!({ "order": 1 }));
        assert_eq!(refill("").await["changed"], 0, "what is done is not done again");

        // A live job goes on, and its own cells with it.
        api.post(&format!("/api/job/{live}/step/ship"), r#"{"sent":"today"}"#).await;
        let has_it = |found: &Value| found["jobs"][0]["job"] == *live;
        api.until("/api/jobs/search?column.sent=today", has_it).await;
        assert_eq!(refill("").await["changed"], 0, "it has its own");
        let unknown = api.post("/api/workflows/ordrs/refill", "").await;
        assert_eq!(unknown.status, StatusCode::NOT_FOUND);

        // A job that cannot be read is counted, and the others are done.
        let change = |sql: &str| {
            let client = Connection::open(folder.path().join("j.db")).expect("opens");
            client.execute_batch(sql).expect(sql);
        };
        let of_first = "WHERE job = (SELECT min(job) FROM entries)";
        change(&format!("UPDATE entries SET body = 'x' || body {of_first}"));
        let rest = refill("").await;
        assert_eq!((&rest["jobs"], &rest["unreadable"]), (&json!(6), &json!(1)));
        change(&format!("UPDATE entries SET body = substr(body, 2) {of_first}"));
        manager.stop().await;
        let texts = select_statuses(folder.path(), "label, \"order\", sent");
        let row = |texts: [&str; 2], sent: Option<&str>| -> Vec<Option<String>> {
            let texts = texts.map(|text| Some(text.to_owned()));
            texts.into_iter().chain([sent.map(str::to_owned)]).collect()
        };
        assert_eq!(texts[0], row(["Order 1", "1"], None));
        assert_eq!(texts[5], row(["Order 6", "6"], Some("today")));

        // A table that is made anew has them too.
        change("DROP TABLE status_orders");
        let (manager, _) = start(after, folder.path()).await;
        manager.stop().await;
        assert_eq!(select_statuses(folder.path(), "label, \"order\", sent"), texts);
    }));
}
