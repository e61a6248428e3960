//! Generates docs/configuration.md from the command line's definition, the configuration file's
//! schema and the declarations of the metrics.
use std::fmt::Write as _;

use clap::{Arg, ArgAction, Command};
use serde_json::Value;

use super::failure::EXIT_CODES;
use super::{command_line, config};
use crate::app;

/// Returns the text of docs/configuration.md.
pub fn configuration() -> String {
    let mut text = String::from(
        "# Configuration\n\n\
         All commands, flags, keys of the configuration file, exit codes and metrics. This file \
         is generated\nfrom the code (`make documents`), and a test compares the two.\n\n\
         - [Commands and flags](#commands-and-flags)\n\
         - [The configuration file](#the-configuration-file)\n\
         - [Environment](#environment)\n\
         - [Exit codes](#exit-codes)\n\
         - [Metrics](#metrics)\n\n\
         ## Commands and flags\n\n\
         A flag is given as `--flag value` or `--flag=value`. The commands `demo`, `load`, `plot` \
         and `simulate` need the\ncargo feature `lab`, which `cargo build` has by default. \
         Released programs and images leave them out.\n",
    );
    let mut program = command_line::definition();
    program.build();
    section(
        &mut text,
        "All commands",
        program.get_arguments().filter(|arg| arg.is_global_set()),
    );
    for command in program.get_subcommands() {
        command_section(&mut text, &program, command);
    }
    keys(&mut text);
    environment(&mut text, &program);
    text.push_str("\n## Exit codes\n\n| code | meaning |\n|---|---|\n");
    for (code, meaning) in EXIT_CODES {
        let _ = writeln!(text, "| {code} | {meaning} |");
    }
    metrics(&mut text);
    text
}

/// Writes a command's description, positional arguments and flags.
fn command_section(text: &mut String, program: &Command, command: &Command) {
    let about = command
        .get_about()
        .map(ToString::to_string)
        .unwrap_or_default();
    let name = command.get_name();
    let _ = write!(text, "\n### `watershed {name}`\n\n{about}.\n");
    let mut arguments = command.get_positionals().peekable();
    if arguments.peek().is_some() {
        text.push_str("\n| argument | |\n|---|---|\n");
    }
    for argument in arguments {
        let _ = writeln!(text, "| `{argument}` | {} |", cell(&help(argument)));
    }
    // `check` takes the flags of `serve`. They are listed once.
    let shared = (name == "check")
        .then(|| program.find_subcommand("serve"))
        .flatten();
    let own: Vec<_> = flags(command)
        .filter(|arg| !shared.is_some_and(|other| has_flag(other, arg)))
        .collect();
    let below = |heading: Option<&str>| {
        own.iter()
            .copied()
            .filter(move |arg| arg.get_help_heading() == heading)
            .collect::<Vec<_>>()
    };
    section(text, "", below(None).into_iter());
    if let Some(other) = shared {
        let _ = write!(
            text,
            "\nIt also takes all flags of `watershed {}`.\n",
            other.get_name()
        );
    }
    let mut headings = Vec::new();
    for heading in own.iter().filter_map(|arg| arg.get_help_heading()) {
        if !headings.contains(&heading) {
            headings.push(heading);
        }
    }
    for heading in headings {
        section(text, heading, below(Some(heading)).into_iter());
    }
}

fn has_flag(command: &Command, flag: &Arg) -> bool {
    flags(command).any(|other| other.get_id() == flag.get_id())
}

/// Returns a command's own flags, except help, version and hidden ones.
fn flags(command: &Command) -> impl Iterator<Item = &Arg> {
    command.get_arguments().filter(|arg| {
        let is_help = matches!(
            arg.get_action(),
            ArgAction::Help | ArgAction::HelpShort | ArgAction::HelpLong | ArgAction::Version
        );
        !arg.is_positional() && !arg.is_global_set() && !arg.is_hide_set() && !is_help
    })
}

/// Writes a table of flags, if there are any.
fn section<'a>(text: &mut String, heading: &str, args: impl Iterator<Item = &'a Arg>) {
    let mut args = args.peekable();
    if args.peek().is_none() {
        return;
    }
    if !heading.is_empty() {
        let _ = write!(text, "\n**{heading}**\n");
    }
    text.push_str("\n| flag | default | |\n|---|---|---|\n");
    for arg in args {
        let _ = writeln!(
            text,
            "| {} | {} | {} |",
            flag(arg),
            default(arg),
            cell(&help(arg))
        );
    }
}

fn flag(arg: &Arg) -> String {
    let names = arg
        .get_value_names()
        .filter(|_| arg.get_action().takes_values())
        .unwrap_or_default();
    let value = if names.is_empty() {
        String::new()
    } else {
        format!(" {}", names.join(" "))
    };
    let long = arg
        .get_long()
        .map(|long| format!("`--{}`", cell(&format!("{long}{value}"))));
    let short = arg.get_short().map(|short| format!("`-{short}`"));
    let aliases = arg
        .get_visible_aliases()
        .into_iter()
        .flatten()
        .map(|alias| format!("`--{alias}`"));
    long.into_iter()
        .chain(short)
        .chain(aliases)
        .collect::<Vec<_>>()
        .join(", ")
}

fn default(arg: &Arg) -> String {
    let values: Vec<_> = arg
        .get_default_values()
        .iter()
        .map(|value| value.to_string_lossy())
        .collect();
    if values.is_empty() || arg.is_hide_default_value_set() || !arg.get_action().takes_values() {
        return String::new();
    }
    format!("`{}`", values.join(","))
}

/// Returns an argument's help, possible values and environment variable.
fn help(arg: &Arg) -> String {
    let text = arg
        .get_long_help()
        .or_else(|| arg.get_help())
        .map(ToString::to_string)
        .unwrap_or_default();
    let mut text = text.split_whitespace().collect::<Vec<_>>().join(" ");
    if !text.is_empty() && !text.ends_with('.') {
        text.push('.');
    }
    if arg.get_action().takes_values() {
        text.push_str(&values(arg));
    }
    if let Some(variable) = arg.get_env() {
        let _ = write!(text, " Also `${}`.", variable.to_string_lossy());
    }
    text
}

/// Returns the values that an argument may have, with what they mean.
fn values(arg: &Arg) -> String {
    let (mut text, mut plain) = (String::new(), Vec::new());
    for value in arg.get_possible_values() {
        let name = value.get_name();
        match value.get_help().map(ToString::to_string) {
            _ if value.is_hide_set() => {}
            Some(means) => {
                let _ = write!(text, " `{name}`: {}.", means.trim_end_matches('.'));
            }
            None => plain.push(format!("`{name}`")),
        }
    }
    if !plain.is_empty() {
        let _ = write!(text, " One of {}.", plain.join(", "));
    }
    text
}

/// Escapes text for a cell of a table.
fn cell(text: &str) -> String {
    text.replace('|', "\\|").replace('\n', " ")
}

fn keys(text: &mut String) {
    text.push_str(
        "\n## The configuration file\n\n\
         A YAML file, given with `--config`. Unknown keys and values are refused, with their \
         line. Editors can\nuse its JSON schema: [config.schema.json](config.schema.json), or \
         `watershed config-schema`.\n\n\
         | key | type | default | |\n|---|---|---|---|\n",
    );
    let schema = config::schema().to_value();
    key_rows(text, &schema, &schema, "");
}

/// Resolves the schema's reference, if it is one.
fn resolved<'a>(root: &'a Value, schema: &'a Value) -> &'a Value {
    let name = schema
        .get("$ref")
        .and_then(Value::as_str)
        .and_then(|name| name.strip_prefix('#'));
    name.and_then(|pointer| root.pointer(pointer))
        .unwrap_or(schema)
}

/// Writes a row for each key of an object and of the objects in it.
fn key_rows(text: &mut String, root: &Value, schema: &Value, prefix: &str) {
    let Some(properties) = resolved(root, schema)
        .get("properties")
        .and_then(Value::as_object)
    else {
        return;
    };
    let required = resolved(root, schema)
        .get("required")
        .and_then(Value::as_array);
    for (name, property) in properties {
        let value = resolved(root, property);
        let description = property
            .get("description")
            .or_else(|| value.get("description"));
        let is_required = required.is_some_and(|names| names.iter().any(|other| other == name));
        let _ = writeln!(
            text,
            "| `{prefix}{name}` | {} | {} | {} |",
            value_type(root, value),
            if is_required {
                "required".to_owned()
            } else {
                key_default(property)
            },
            cell(&on_one_line(description))
        );
        if let Some(items) = value.get("items") {
            key_rows(text, root, items, &format!("{prefix}{name}[]."));
        }
    }
}

fn key_default(property: &Value) -> String {
    match property.get("default") {
        Some(Value::Array(list)) if list.is_empty() => String::new(),
        Some(Value::String(default)) if default.is_empty() => String::new(),
        Some(Value::Null) | None => String::new(),
        Some(default) => format!("`{default}`"),
    }
}

/// Returns a schema's text without line breaks.
fn on_one_line(text: Option<&Value>) -> String {
    let text = text.and_then(Value::as_str).unwrap_or_default();
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Describes the values that a schema allows.
fn value_type(root: &Value, schema: &Value) -> String {
    if let Some(values) = schema.get("enum").and_then(Value::as_array) {
        return values.iter().map(literal).collect::<Vec<_>>().join(", ");
    }
    if let Some(variants) = schema.get("oneOf").and_then(Value::as_array) {
        let variants: Vec<_> = variants
            .iter()
            .map(|variant| variant_type(root, variant))
            .collect();
        return cell(&variants.join("; "));
    }
    let kind = schema.get("type");
    if let Some(kinds) = kind.and_then(Value::as_array) {
        let kinds: Vec<_> = kinds.iter().filter_map(Value::as_str).collect();
        return kinds.join(" or ");
    }
    match kind.and_then(Value::as_str) {
        Some("array") => {
            let items = schema
                .get("items")
                .map(|items| value_type(root, resolved(root, items)));
            format!("list of {}", items.unwrap_or_else(|| "anything".to_owned()))
        }
        Some("object") => "objects".to_owned(),
        Some(other) => other.to_owned(),
        None => String::new(),
    }
}

fn literal(value: &Value) -> String {
    value
        .as_str()
        .map_or_else(|| format!("`{value}`"), |text| format!("`{text}`"))
}

fn variant_type(root: &Value, variant: &Value) -> String {
    let Some(value) = variant.get("const").and_then(Value::as_str) else {
        return value_type(root, variant);
    };
    let meaning = on_one_line(variant.get("description")).replace("**", "");
    format!("`{value}`: {}", meaning.trim_end_matches('.'))
}

fn environment(text: &mut String, command: &Command) {
    text.push_str("\n## Environment\n\n| variable | |\n|---|---|\n");
    let all = command
        .get_subcommands()
        .flat_map(Command::get_arguments)
        .chain(command.get_arguments());
    let mut variables: Vec<_> = all
        .filter_map(|arg| {
            Some((
                arg.get_env()?.to_string_lossy().into_owned(),
                arg.get_long()?,
            ))
        })
        .map(|(variable, flag)| (variable, format!("as `--{flag}`, which takes precedence")))
        .collect();
    let others = [
        (
            "KUBECONFIG",
            "kubeconfigs, of which those that exist are merged as kubectl does, unless `--kubeconfig` \
             is given",
        ),
        (
            "KUBERNETES_SERVICE_HOST",
            "in a pod: the API server's address; use the pod's service account, unless a kubeconfig \
             is given",
        ),
        (
            "KUBERNETES_SERVICE_PORT",
            "in a pod: the port of that address",
        ),
        ("HOME", "folder of `.kube/config`, the default kubeconfig"),
    ];
    variables.extend(others.map(|(variable, what)| (variable.to_owned(), what.to_owned())));
    variables.sort();
    variables.dedup();
    for (variable, what) in variables {
        let _ = writeln!(text, "| `{variable}` | {what} |");
    }
    text.push_str(
        "\n`HTTPS_PROXY`, similar variables and `RUST_LOG` have no effect. With the cargo feature \
         `otel`,\nOpenTelemetry's own variables configure traces: see \
         [operations.md](operations.md#traces).\n",
    );
}

fn metrics(text: &mut String) {
    text.push_str(
        "\n## Metrics\n\n\
         The admin listener serves them at `/metrics`. A series appears with its first value.\nThe first \
         5,000 types have series of their own. All further ones share the names `other`.\n\n\
         | metric | type | labels | |\n|---|---|---|---|\n",
    );
    for metric in app::metrics() {
        let labels = metric
            .labels
            .iter()
            .map(|label| format!("`{label}`"))
            .collect::<Vec<_>>()
            .join(", ");
        let _ = writeln!(
            text,
            "| `{}` | {} | {labels} | {} |",
            metric.name,
            metric.kind.as_str(),
            cell(metric.help)
        );
    }
}
