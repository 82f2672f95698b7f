//! The worker for `price` of docs/learn/1-first-workflow.md:
//! `cargo run -p workflow-worker --example price`.

use serde::{Deserialize, Serialize};
use workflow_worker::{Failure, Step};

#[derive(Deserialize)]
struct Order {
    line: Line,
}

#[derive(Deserialize)]
struct Line {
    article: String,
    count: u32,
}

#[derive(Serialize)]
struct Priced {
    line: PricedLine,
}

#[derive(Serialize)]
struct PricedLine {
    article: String,
    count: u32,
    cents: u32,
}

async fn price(order: Order, _step: Step) -> Result<Priced, Failure> {
    let Line { article, count } = order.line;
    let each = match article.as_str() {
        "pen" => 250,
        "ink" => 990,
        _ => return Err(Failure::last(format!("there is no price for {article}"))),
    };
    Ok(Priced { line: PricedLine { article, count, cents: each * count } })
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), workflow_worker::Error> {
    workflow_worker::run("price", price).await
}
