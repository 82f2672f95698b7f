//! Arguments of `init`, which makes a folder from a template.

use super::super::templates::TEMPLATES;
use clap::Args;
use clap::builder::PossibleValuesParser;
use std::path::PathBuf;

/// Arguments of `init`.
#[derive(Args, Debug)]
pub(crate) struct InitArguments {
    /// The template; --list tells what each one has
    #[arg(
        value_parser = PossibleValuesParser::new(TEMPLATES.iter().map(|template| template.name)),
        hide_possible_values = true
    )]
    pub(crate) template: Option<String>,
    /// The folder; it is created if it is missing [default: the template's name]
    #[arg(value_name = "DIR")]
    pub(crate) directory: Option<PathBuf>,
    /// List the templates
    #[arg(long, conflicts_with = "template")]
    pub(crate) list: bool,
}
