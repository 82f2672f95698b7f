//! Joins the modules of the page into one script: a browser fetches one file in the time that it
//! needs to ask for a few, and the page has seventy modules. The text of each module stays as it
//! is, in a function of its own; its imports become constants, its exports the function's result.
//!
//! This is not a bundler for any JavaScript. It knows the forms that the page's modules and its
//! libraries have, and refuses others: imports by name, before all else; exports of declarations,
//! or one list of names; no cycles.

use std::collections::HashMap;
use std::fmt::Write;

/// A name in one module, and its name in the other.
struct Renamed<'t> {
    from: &'t str,
    to: &'t str,
}

/// An import of names from a module of the page.
struct Import<'t> {
    names: Vec<Renamed<'t>>,
    path: String,
}

/// The keywords after which an exported declaration has its name.
const DECLARATIONS: [&str; 5] = ["const ", "class ", "function* ", "function ", "async function "];

/// A module of the script.
struct Module {
    number: usize,
    is_joined: bool,
}

/// The script under construction.
struct Script<'r, R> {
    read: &'r R,
    text: String,
    /// The modules that are joined or whose imports are being joined, by their paths.
    modules: HashMap<String, Module>,
}

/// Returns the text of the script that does what the module at `path` does. `read` returns a
/// module's text from its path.
///
/// # Errors
///
/// Names a module that does not exist, has an import or export of an unknown form, or is part of a
/// cycle of imports.
pub(super) fn join_modules(
    path: &str,
    read: &impl Fn(&str) -> Option<String>,
) -> Result<String, String> {
    let mut script = Script { read, text: String::new(), modules: HashMap::new() };
    script.add_module(path)?;
    Ok(script.text)
}

impl<R: Fn(&str) -> Option<String>> Script<'_, R> {
    /// Adds a module after those that it imports, unless it is there. Returns its number.
    fn add_module(&mut self, path: &str) -> Result<usize, String> {
        match self.modules.get(path) {
            Some(Module { number, is_joined: true }) => return Ok(*number),
            Some(_) => return Err(format!("{path} imports itself through other modules")),
            None => {}
        }
        let number = self.modules.len();
        self.modules.insert(path.to_owned(), Module { number, is_joined: false });
        let text = (self.read)(path).ok_or_else(|| format!("there is no module {path}"))?;
        let (imports, body) = split_imports(path, &text)?;
        let mut constants = String::new();
        for Import { names, path } in &imports {
            let number = self.add_module(path)?;
            let names = list_names(names);
            let _ = writeln!(constants, "const {{ {names} }} = module{number};");
        }
        let (body, exports) = split_exports(path, body)?;
        // A module asks for files beside itself.
        let own_address = format!("new URL('{path}', import.meta.url).href");
        let body = body.replace("import.meta.url", &own_address);
        let exports: Vec<_> = exports
            .into_iter()
            .map(|Renamed { from, to }| Renamed { from: to, to: from })
            .collect();
        let exports = list_names(&exports);
        let _ = writeln!(self.text, "// {path}\nconst module{number} = (() => {{");
        let _ = writeln!(self.text, "{constants}{body}\nreturn {{ {exports} }};\n}})();");
        self.modules.insert(path.to_owned(), Module { number, is_joined: true });
        Ok(number)
    }
}

/// Writes names as a pattern of an object, or as a literal of one.
fn list_names(names: &[Renamed<'_>]) -> String {
    let name = |Renamed { from, to }: &Renamed<'_>| {
        if from == to { (*from).to_owned() } else { format!("{from}: {to}") }
    };
    names.iter().map(name).collect::<Vec<_>>().join(", ")
}

/// Parses a list such as `a, b as c`.
fn parse_names(list: &str) -> Vec<Renamed<'_>> {
    let names = list.split(',').map(str::trim).filter(|name| !name.is_empty());
    names
        .map(|name| match name.split_once(" as ") {
            Some((from, to)) => Renamed { from: from.trim(), to: to.trim() },
            None => Renamed { from: name, to: name },
        })
        .collect()
}

/// Splits a module's text into its imports and what follows. Comments before and between the
/// imports are dropped.
fn split_imports<'t>(path: &str, text: &'t str) -> Result<(Vec<Import<'t>>, &'t str), String> {
    let mut imports = Vec::new();
    let mut rest = text;
    loop {
        rest = rest.trim_start();
        if rest.starts_with("//") {
            rest = rest.split_once('\n').map_or("", |(_, rest)| rest);
        } else if rest.starts_with("/*") {
            rest = rest.split_once("*/").map_or("", |(_, rest)| rest);
        } else if rest.starts_with("import ") || rest.starts_with("import{") {
            let unknown = || format!("{path} has an import that is not of names");
            let (statement, after) = rest.split_once(';').ok_or_else(unknown)?;
            let list = statement.trim_start_matches("import").trim_start();
            let list = list.strip_prefix('{').ok_or_else(unknown)?;
            let (list, from) = list.split_once('}').ok_or_else(unknown)?;
            let from = from.trim().strip_prefix("from").ok_or_else(unknown)?;
            let from = from.trim().trim_matches(['"', '\'']);
            imports.push(Import { names: parse_names(list), path: resolve_path(path, from) });
            rest = after;
        } else {
            return Ok((imports, rest));
        }
    }
}

/// Returns the path of a module that another one imports by a relative path.
fn resolve_path(importer: &str, relative: &str) -> String {
    let mut parts: Vec<&str> = importer.split('/').collect();
    parts.pop();
    for part in relative.split('/') {
        match part {
            "." => {}
            ".." => drop(parts.pop()),
            part => parts.push(part),
        }
    }
    parts.join("/")
}

/// Returns a module's text without the word `export`, and the names that it exports.
fn split_exports<'t>(path: &str, body: &'t str) -> Result<(String, Vec<Renamed<'t>>), String> {
    let mut text = String::with_capacity(body.len());
    let mut exports = Vec::new();
    for line in body.lines().filter(|line| !line.starts_with("//# sourceMappingURL=")) {
        if let Some(declaration) = line.strip_prefix("export ") {
            let name = DECLARATIONS.iter().find_map(|word| declaration.strip_prefix(word));
            let name = name.ok_or_else(|| format!("{path} has an unknown export: {line}"))?;
            let is_part = |letter: char| letter.is_alphanumeric() || letter == '_' || letter == '$';
            let end = name.find(|letter| !is_part(letter)).unwrap_or(name.len());
            exports.push(Renamed { from: &name[..end], to: &name[..end] });
            text.push_str(declaration);
        } else if let Some((before, list)) = line.split_once("export{") {
            let (list, after) = list.split_once('}').unwrap_or((list, ""));
            if after.trim_start().starts_with("from") {
                return Err(format!("{path} exports names of another module"));
            }
            exports.extend(parse_names(list));
            text.push_str(before);
            text.push_str(after);
        } else {
            text.push_str(line);
        }
        text.push('\n');
    }
    Ok((text, exports))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Joins `main.js` with two modules beside it.
    fn join(main: &str, a: &str, b: &str) -> Result<String, String> {
        let read = |path: &str| {
            let modules = [("main.js", main), ("lib/a.js", a), ("lib/b.js", b)];
            modules.iter().find(|(name, _)| *name == path).map(|(_, text)| (*text).to_owned())
        };
        join_modules("main.js", &read)
    }

    #[test]
    fn each_module_is_a_function_after_those_that_it_imports() {
        let main =
            "// What it is.\n\nimport { one as first, two } from './lib/a.js';\nrun(first, two);";
        let a = "import{x as y}from\"./b.js\";const o=y;export{o as one};\nexport const two = 2;";
        let b = "export function x() {}\nat(import.meta.url);\n//# sourceMappingURL=b.js.map";
        let expected = "\
// lib/b.js
const module2 = (() => {
function x() {}
at(new URL('lib/b.js', import.meta.url).href);

return { x };
})();
// lib/a.js
const module1 = (() => {
const { x: y } = module2;
const o=y;;
const two = 2;

return { one: o, two };
})();
// main.js
const module0 = (() => {
const { one: first, two } = module1;
run(first, two);

return {  };
})();
";
        assert_eq!(join(main, a, b).expect("joins"), expected);
    }

    #[test]
    fn what_is_not_known_is_refused_by_name() {
        let import = "import { a } from './lib/a.js';";
        for (main, a, expected) in [
            ("import a from './lib/a.js';", "", "main.js has an import that is not of names"),
            ("import './lib/a.js';", "", "main.js has an import that is not of names"),
            ("import { c } from './lib/c.js';", "", "there is no module lib/c.js"),
            (import, "export let a = 1;", "lib/a.js has an unknown export: export let a = 1;"),
            (import, "export default 1;", "lib/a.js has an unknown export: export default 1;"),
            (import, "export{a}from\"./b.js\";", "lib/a.js exports names of another module"),
            (
                import,
                "import { b } from './b.js';",
                "lib/a.js imports itself through other modules",
            ),
        ] {
            let b = "import { a } from './a.js';\nexport const b = a;";
            assert_eq!(join(main, a, b), Err(expected.to_owned()));
        }
    }
}
