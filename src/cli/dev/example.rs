//! The built-in example of `dev`: a workflow in a file of a temporary folder, and its workers.

use bus::Publication;
use bus::embedded::{WorkerError, Workers};
use bytes::Bytes;
use serde_json::{Map, Value, json};
use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::PathBuf;

/// The workflow of the example.
pub(super) const WORKFLOW: &str = "orders";

/// The message of its first job.
pub(super) const MESSAGE: &str =
    r#"{"customer":"Ada","lines":[{"article":"pen","count":3},{"article":"ink","count":1}]}"#;

/// The text of the workflow file.
const WORKFLOW_FILE: &str = include_str!("example.yaml");

/// What the articles cost, in cents.
const PRICES: [(&str, u64); 2] = [("pen", 250), ("ink", 990)];

/// How long a price takes, so that a person can see it.
const PRICE_DURATION: std::time::Duration = std::time::Duration::from_millis(300);

/// The folder with the workflow file of the example. It is removed on drop.
pub(super) struct Example {
    folder: PathBuf,
}

impl Example {
    /// Writes the workflow file into a new folder.
    pub(super) fn write() -> io::Result<Example> {
        let name = format!("workflow-manager-dev-{}", std::process::id());
        let folder = std::env::temp_dir().join(name);
        DirBuilder::new().mode(0o700).create(&folder)?;
        let example = Example { folder };
        fs::write(example.file(), WORKFLOW_FILE)?;
        Ok(example)
    }

    /// Returns the path of the workflow file.
    pub(super) fn file(&self) -> PathBuf {
        self.folder.join("example.yaml")
    }
}

impl Drop for Example {
    fn drop(&mut self) {
        // What remains in the folder for temporary files harms nobody.
        let _ = fs::remove_dir_all(&self.folder);
    }
}

/// Returns the workers of the example.
pub(super) fn workers() -> Workers {
    let parse = |message: &Publication| -> Result<Map<String, Value>, WorkerError> {
        Ok(serde_json::from_slice(&message.body.to_bytes())?)
    };
    Workers::new()
        .with_worker("price", 2, move |message| {
            std::thread::sleep(PRICE_DURATION);
            price(parse(message)?)
        })
        .with_worker("invoice", 1, move |message| invoice(&parse(message)?))
}

/// Prices a line of an order.
fn price(mut message: Map<String, Value>) -> Result<Bytes, WorkerError> {
    let line = message.get_mut("line").and_then(Value::as_object_mut);
    let line = line.ok_or("the message has no line")?;
    let article = line.get("article").and_then(Value::as_str).unwrap_or_default();
    let price = PRICES.iter().find(|(name, _)| *name == article);
    let (_, price) = price.ok_or_else(|| format!("there is no price for {article:?}"))?;
    let count = line.get("count").and_then(Value::as_u64).ok_or("the line has no count")?;
    line.insert("cents".to_owned(), json!(price.saturating_mul(count)));
    Ok(json!({ "line": line }).to_string().into())
}

/// Adds up the lines of an order.
fn invoice(order: &Map<String, Value>) -> Result<Bytes, WorkerError> {
    let lines = order.get("lines").and_then(Value::as_array).ok_or("the order has no lines")?;
    let cents: u64 = lines.iter().filter_map(|line| line["cents"].as_u64()).sum();
    Ok(json!({ "customer": order.get("customer"), "cents": cents }).to_string().into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_workers_price_an_order() {
        let object = |value: Value| value.as_object().unwrap().clone();
        let line = json!({ "line": { "article": "pen", "count": 3 } });
        let priced = price(object(line)).unwrap();
        let priced: Value = serde_json::from_slice(&priced).unwrap();
        assert_eq!(priced["line"]["cents"], 750);
        let order = json!({ "customer": "Ada", "lines": [priced["line"], { "cents": 990 }] });
        let bill = invoice(&object(order)).unwrap();
        let bill: Value = serde_json::from_slice(&bill).unwrap();
        assert_eq!(bill, json!({ "customer": "Ada", "cents": 1740 }));
        let unknown = price(object(json!({ "line": { "article": "quill", "count": 1 } })));
        assert!(unknown.unwrap_err().reason.contains("quill"));
    }

    #[test]
    fn the_example_is_valid_and_goes_with_its_folder() {
        let example = Example::write().unwrap();
        let (file, folder) = (example.file(), example.folder.clone());
        let loaded = daemon::load::load_files(&[file]).unwrap();
        let names: Vec<String> =
            loaded.definitions.iter().map(|definition| definition.full_name()).collect();
        assert_eq!(names, [WORKFLOW]);
        drop(example);
        assert!(!folder.exists());
    }
}
