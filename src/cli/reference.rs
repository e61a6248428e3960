//! What the program can be told and what it tells, put into documents: from the command line's own
//! definition, the configuration file's schema and the declarations of the metrics.
use std::fmt::Write as _;

use clap::{Arg, ArgAction, Command, CommandFactory as _};
use serde_json::Value;

use super::trouble::EXIT_CODES;
use super::{Cli, config};
use crate::app;

/// The JSON schema of the configuration file.
pub fn config_schema() -> String {
    let mut schema = config::schema();
    schema.insert(
        "title".to_owned(),
        "Configuration of watershed (--config)".into(),
    );
    format!("{:#}\n", schema.to_value())
}

/// docs/configuration.md.
pub fn configuration() -> String {
    let mut text = String::from(
        "# Configuration\n\n\
         Everything that the program can be told, and every metric. This file is made from the code (`make documents`), and a test holds it to that.\n\
         The [README](../README.md#flags) says what matters most.\n\n\
         - [Commands and flags](#commands-and-flags)\n- [The configuration file](#the-configuration-file)\n- [Environment](#environment)\n- [Exit codes](#exit-codes)\n- [Metrics](#metrics)\n\n\
         ## Commands and flags\n\nA flag is given as `--flag value` or `--flag=value`.\n",
    );
    let mut whole = Cli::command();
    whole.build();
    let global = |arg: &&Arg| arg.is_global_set();
    section(
        &mut text,
        "All commands",
        whole.get_arguments().filter(global),
    );
    for command in whole.get_subcommands() {
        let about = command
            .get_about()
            .map(ToString::to_string)
            .unwrap_or_default();
        let _ = write!(
            text,
            "\n### `watershed {}`\n\n{about}.\n",
            command.get_name()
        );
        let places: Vec<_> = command.get_positionals().collect();
        for place in &places {
            let _ = write!(
                text,
                "\n`{}`: {}.\n",
                place,
                help(place).trim_end_matches('.')
            );
        }
        // What examines another command's flags has them all.
        let shared = if command.get_name() == "check" {
            whole.find_subcommand("serve")
        } else {
            None
        };
        let is_shared = |arg: &Arg| {
            shared.is_some_and(|other| flags(other).any(|flag| flag.get_id() == arg.get_id()))
        };
        let own = || flags(command).filter(|arg| !is_shared(arg));
        section(
            &mut text,
            "",
            own().filter(|arg| arg.get_help_heading().is_none()),
        );
        if let Some(other) = shared {
            let _ = write!(
                text,
                "\nBeside these it takes all flags of `watershed {}`.\n",
                other.get_name()
            );
        }
        let mut headings = Vec::new();
        for heading in own().filter_map(Arg::get_help_heading) {
            if !headings.contains(&heading) {
                headings.push(heading);
            }
        }
        for heading in headings {
            section(
                &mut text,
                heading,
                own().filter(|arg| arg.get_help_heading() == Some(heading)),
            );
        }
    }
    keys(&mut text);
    environment(&mut text, &whole);
    text.push_str("\n## Exit codes\n\n| code | means |\n|---|---|\n");
    for (code, meaning) in EXIT_CODES {
        let _ = writeln!(text, "| {code} | {meaning} |");
    }
    metrics(&mut text);
    text
}

/// A command's own flags that are shown.
fn flags(command: &Command) -> impl Iterator<Item = &Arg> {
    command.get_arguments().filter(|arg| {
        let is_help = matches!(
            arg.get_action(),
            ArgAction::Help | ArgAction::HelpShort | ArgAction::HelpLong | ArgAction::Version
        );
        !arg.is_positional() && !arg.is_global_set() && !arg.is_hide_set() && !is_help
    })
}

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

/// Its help, with what it may be and the variable that stands for it.
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
        for value in arg
            .get_possible_values()
            .iter()
            .filter(|value| !value.is_hide_set())
        {
            let means = value
                .get_help()
                .map(ToString::to_string)
                .unwrap_or_default();
            let means = if means.is_empty() {
                String::new()
            } else {
                format!(": {}", means.trim_end_matches('.'))
            };
            let _ = write!(text, " `{}`{means}.", value.get_name());
        }
    }
    if let Some(variable) = arg.get_env() {
        let _ = write!(text, " Also `${}`.", variable.to_string_lossy());
    }
    text
}

/// Text for a cell of a table.
fn cell(text: &str) -> String {
    text.replace('|', "\\|").replace('\n', " ")
}

fn keys(text: &mut String) {
    text.push_str(
        "\n## The configuration file\n\nYAML, given with `--config`. Other keys and values are refused, with their line. The same as a JSON schema, for editors: [config.schema.json](config.schema.json), or `watershed config-schema`.\n\n\
         | key | type | default | |\n|---|---|---|---|\n",
    );
    let schema = config::schema().to_value();
    below(text, &schema, &schema, "");
}

/// The schema that another one stands for.
fn resolved<'a>(root: &'a Value, schema: &'a Value) -> &'a Value {
    let name = schema
        .get("$ref")
        .and_then(Value::as_str)
        .and_then(|name| name.strip_prefix('#'));
    name.and_then(|pointer| root.pointer(pointer))
        .unwrap_or(schema)
}

fn below(text: &mut String, root: &Value, schema: &Value, prefix: &str) {
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
        let what = resolved(root, property);
        let described = property
            .get("description")
            .or_else(|| what.get("description"));
        let described = described.and_then(Value::as_str).unwrap_or_default();
        let described = described.split_whitespace().collect::<Vec<_>>().join(" ");
        let default = match property.get("default") {
            _ if required.is_some_and(|names| names.iter().any(|required| required == name)) => {
                "required".to_owned()
            }
            Some(Value::Array(list)) if list.is_empty() => String::new(),
            Some(Value::String(default)) if default.is_empty() => String::new(),
            Some(default) => format!("`{default}`"),
            None => String::new(),
        };
        let _ = writeln!(
            text,
            "| `{prefix}{name}` | {} | {default} | {} |",
            kind(root, what),
            cell(&described)
        );
        if let Some(items) = what.get("items") {
            below(text, root, items, &format!("{prefix}{name}[]."));
        }
    }
}

/// What a value may be.
fn kind(root: &Value, schema: &Value) -> String {
    let choices = |values: &Vec<Value>| {
        let word = |value: &Value| {
            value
                .as_str()
                .map_or_else(|| format!("`{value}`"), |word| format!("`{word}`"))
        };
        values.iter().map(word).collect::<Vec<_>>().join(", ")
    };
    if let Some(values) = schema.get("enum").and_then(Value::as_array) {
        return choices(values);
    }
    if let Some(variants) = schema.get("oneOf").and_then(Value::as_array) {
        let each =
            variants.iter().map(
                |variant| match variant.get("const").and_then(Value::as_str) {
                    Some(word) => {
                        let means = variant
                            .get("description")
                            .and_then(Value::as_str)
                            .unwrap_or_default();
                        let means = means
                            .split_whitespace()
                            .collect::<Vec<_>>()
                            .join(" ")
                            .replace("**", "");
                        format!("`{word}`: {}", means.trim_end_matches('.'))
                    }
                    None => kind(root, variant),
                },
            );
        return cell(&each.collect::<Vec<_>>().join("; "));
    }
    match schema.get("type").and_then(Value::as_str) {
        Some("array") => {
            let items = schema
                .get("items")
                .map(|items| kind(root, resolved(root, items)));
            format!("list of {}", items.unwrap_or_else(|| "anything".to_owned()))
        }
        Some("object") => "objects".to_owned(),
        Some(other) => other.to_owned(),
        None => String::new(),
    }
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
        .map(|(variable, flag)| (variable, format!("as `--{flag}`, which counts more")))
        .collect();
    let others = [
        (
            "KUBECONFIG",
            "kubeconfigs, merged as kubectl does, where `--kubeconfig` is not given",
        ),
        (
            "KUBERNETES_SERVICE_HOST",
            "in a pod, where neither is given: the pod's service account is used",
        ),
        ("HOME", "`~/.kube/config`, where none of these is there"),
    ];
    variables.extend(others.map(|(variable, what)| (variable.to_owned(), what.to_owned())));
    variables.sort();
    variables.dedup();
    for (variable, what) in variables {
        let _ = writeln!(text, "| `{variable}` | {what} |");
    }
    text.push_str("\n`HTTPS_PROXY` and the like are not looked at, and neither is `RUST_LOG`. With the cargo feature `otel` OpenTelemetry's own variables say where traces go: see [operations.md](operations.md#traces).\n");
}

fn metrics(text: &mut String) {
    text.push_str(
        "\n## Metrics\n\nAt `/metrics` of the admin listener. A series appears once there is something to count.\n\n| metric | type | labels | |\n|---|---|---|---|\n",
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
