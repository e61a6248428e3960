//! The memory limit of the control group that the process runs in.
use std::path::{Path, PathBuf};

/// Limits from here on are none: version 1 writes the largest multiple of a page.
const UNLIMITED: u64 = 1 << 60;

/// Returns the memory limit of the process's control group, or of one around it; `None` if there is
/// no limit, or no control groups.
pub fn container_limit() -> Option<u64> {
    limit_below(Path::new("/"))
}

/// Returns the least limit of the groups that the process is in, in the file system below `root`.
fn limit_below(root: &Path) -> Option<u64> {
    let groups = std::fs::read_to_string(root.join("proc/self/cgroup")).ok()?;
    groups.lines().filter_map(|line| limit_of(root, line)).min()
}

/// Returns the least limit of a group and those around it. A line has an identifier, controllers
/// and a path; version 2 has no controllers in it.
fn limit_of(root: &Path, line: &str) -> Option<u64> {
    let mut parts = line.splitn(3, ':').skip(1);
    let (controllers, path) = (parts.next()?, parts.next()?);
    let (folder, file) = if controllers.is_empty() {
        ("sys/fs/cgroup", "memory.max")
    } else if controllers.split(',').any(|name| name == "memory") {
        ("sys/fs/cgroup/memory", "memory.limit_in_bytes")
    } else {
        return None;
    };
    let path = PathBuf::from(path.trim_start_matches('/'));
    // In a container the path may be the host's, and the container's own group is the mount itself.
    let limits = path
        .ancestors()
        .filter_map(|group| std::fs::read_to_string(root.join(folder).join(group).join(file)).ok())
        .filter_map(|limit| limit.trim().parse().ok());
    limits.filter(|limit| *limit < UNLIMITED).min()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Writes files and returns the limit that they state.
    fn limit(files: &[(&str, &str)]) -> Option<u64> {
        let root = tempfile::tempdir().unwrap();
        for (path, text) in files {
            let path = root.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        }
        limit_below(root.path())
    }

    #[test]
    fn the_least_limit_around_the_process_counts() {
        let of = ("proc/self/cgroup", "0::/kubepods/pod1/app\n");
        assert_eq!(
            limit(&[
                of,
                ("sys/fs/cgroup/kubepods/pod1/app/memory.max", "max\n"),
                ("sys/fs/cgroup/kubepods/pod1/memory.max", "1048576\n"),
                ("sys/fs/cgroup/kubepods/memory.max", "8388608\n"),
            ]),
            Some(1 << 20)
        );
        assert_eq!(
            limit(&[of, ("sys/fs/cgroup/kubepods/pod1/app/memory.max", "max\n")]),
            None
        );
        assert_eq!(limit(&[]), None);
    }

    #[test]
    fn the_group_of_a_container_is_at_the_mount() {
        assert_eq!(
            limit(&[
                ("proc/self/cgroup", "0::/\n"),
                ("sys/fs/cgroup/memory.max", "2097152\n"),
            ]),
            Some(2 << 20)
        );
        let first = "12:cpu,cpuacct:/a\n5:memory:/docker/abc\n";
        let file = "sys/fs/cgroup/memory/memory.limit_in_bytes";
        assert_eq!(
            limit(&[("proc/self/cgroup", first), (file, "3145728\n")]),
            Some(3 << 20)
        );
        assert_eq!(
            limit(&[("proc/self/cgroup", first), (file, "9223372036854771712\n")]),
            None
        );
    }
}
