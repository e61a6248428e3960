//! The resident memory of the process.

/// Returns the resident memory of the process, in bytes; `None` if the system does not tell, as when
/// the process may open no more files.
///
/// `/proc/self/statm` is read where it exists: the collector of the process's metrics also counts
/// open files, which takes milliseconds with thousands of connections.
pub(super) fn resident_bytes() -> Option<usize> {
    let statm = std::fs::read_to_string("/proc/self/statm").ok();
    let pages = statm.as_deref().and_then(resident_pages);
    let read = pages.map(|pages| pages * rustix::param::page_size());
    read.or_else(collected)
}

/// Returns the second figure, which is the resident pages.
fn resident_pages(statm: &str) -> Option<usize> {
    statm.split_ascii_whitespace().nth(1)?.parse().ok()
}

fn collected() -> Option<usize> {
    let figures = metrics_process::collector::collect();
    let bytes = figures.resident_memory_bytes?;
    usize::try_from(bytes).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_has_resident_memory() {
        assert_eq!(resident_pages("12345 678 90 1 0 2 0\n"), Some(678));
        let (read, collected) = (resident_bytes().unwrap(), collected().unwrap());
        assert!(read > 1 << 20);
        assert!(read.abs_diff(collected) < read / 2, "{read}, {collected}");
    }
}
