//! Errors as operators read them.

/// An error and its causes. What several of them say is said once, and of a text of several lines, which shows the
/// place in a file, the first line is taken.
pub fn one_line(error: &anyhow::Error) -> String {
    let mut told = String::new();
    for cause in error.chain() {
        let cause = cause.to_string();
        let cause = cause.lines().next().unwrap_or_default();
        if !told.contains(cause) {
            told = if told.is_empty() { cause.to_owned() } else { format!("{told}: {cause}") };
        }
    }
    told
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn causes_are_told_once_and_on_one_line() {
        let error =
            anyhow::anyhow!("no such file\n --> there").context("cannot read a: no such file").context("--b");
        assert_eq!(one_line(&error), "--b: cannot read a: no such file");
    }
}
