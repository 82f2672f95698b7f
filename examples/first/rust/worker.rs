//! Runs once for each message: the step's input comes on standard input, its output goes to
//! standard output.

use serde_json::{Value, json};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let message: Value = serde_json::from_reader(std::io::stdin())?;
    // An error fails the attempt, with these words.
    let name = message["name"].as_str().ok_or("nobody to greet: the message has no name")?;
    println!("{}", json!({ "greeting": format!("Hello, {name}!") }));
    Ok(())
}
