"""Compiles the program for each platform, as static binaries that any machine reproduces.

Rust's musl targets bring their C library and start-up objects, and rust-lld links them. Zig
compiles the C sources of the allocator and the cryptography for any target. So the host lends
neither headers nor libraries.
"""

import json
import os
import re
import shlex
import subprocess
from dataclasses import dataclass
from pathlib import Path

RUST = "1.95.0"
CARGO_AUDITABLE = "0.7.7"
# The section of a program that names its crates.
AUDIT_SECTION = b"\0.dep-v0\0"


@dataclass(frozen=True)
class Platform:
    """A platform by its names in the formats that a release has."""

    oci: str
    rpm: str
    rust: str
    zig: str
    # What jemalloc would ask the kernel and the processor of the machine that builds.
    environment: tuple[tuple[str, str], ...]


# 2^21 bytes are a huge page on either platform, as long as pages are 4 KiB.
HUGE_PAGE = ("JEMALLOC_SYS_WITH_LG_HUGEPAGE", "21")
PLATFORMS = (
    Platform(
        "amd64",
        "x86_64",
        "x86_64-unknown-linux-musl",
        "x86_64-linux-musl",
        (HUGE_PAGE, ("JEMALLOC_SYS_WITH_LG_VADDR", "57")),
    ),
    Platform(
        "arm64",
        "aarch64",
        "aarch64-unknown-linux-musl",
        "aarch64-linux-musl",
        # Some arm64 kernels have pages of 64 KiB.
        (HUGE_PAGE, ("JEMALLOC_SYS_WITH_LG_PAGE", "16")),
    ),
)


@dataclass(frozen=True)
class Tools:
    """The folder of the tools that `prepare` installed."""

    folder: Path

    @property
    def python(self) -> Path:
        """Returns the interpreter whose packages are Zig and the root certificates."""
        return self.folder / "python" / "bin" / "python"

    @property
    def cargo_bin(self) -> Path:
        """Returns where cargo installed programs."""
        return self.folder / "bin"

    def certificates(self) -> bytes:
        """Returns the root certificates, in PEM."""
        code = "import certifi; print(certifi.where(), end='')"
        where = subprocess.run([self.python, "-c", code], check=True, capture_output=True)
        return Path(where.stdout.decode()).read_bytes()


def prepare(folder: Path, requirements: Path) -> Tools:
    """Installs what is missing of the tools into `folder`."""
    tools = Tools(folder)
    if not tools.python.exists():
        run(["python3", "-m", "venv", folder / "python"])
    pip = [tools.python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    run([*pip, "--require-hashes", "--no-deps", "--only-binary", ":all:", "-r", requirements])
    installed = subprocess.run(
        ["rustup", "toolchain", "list"], check=True, capture_output=True, text=True
    )
    if not any(line.startswith(f"{RUST}-") for line in installed.stdout.splitlines()):
        run(["rustup", "toolchain", "install", RUST, "--profile", "minimal", "--no-self-update"])
    run(["rustup", "target", "add", "--toolchain", RUST, *(it.rust for it in PLATFORMS)])
    run(
        [
            "cargo",
            "install",
            "--quiet",
            "--locked",
            "--root",
            folder,
            f"cargo-auditable@{CARGO_AUDITABLE}",
        ]
    )
    return tools


def compile_program(
    source: Path, target_folder: Path, platform: Platform, tools: Tools, epoch: int
) -> Path:
    """Builds the program as it is shipped, and returns its path."""
    folders = renamed_folders(source, target_folder, tools)
    environment = build_environment(target_folder, platform, tools, epoch, folders)
    command = [
        "cargo",
        "build",
        "--locked",
        "--profile",
        "dist",
        "--no-default-features",
    ]
    run([*command, "--bin", "watershed", "--target", platform.rust], cwd=source, **environment)
    program = target_folder / platform.rust / "dist" / "watershed"
    check_program(program, folders)
    return program


def renamed_folders(source: Path, target_folder: Path, tools: Tools) -> dict[Path, str]:
    """Returns the folders of this machine whose files are compiled, and their names in the program."""
    home = Path.home()
    # Of several that match a path, the last counts: the other folders may be below the sources.
    return {
        source: "/source",
        Path(os.environ.get("CARGO_HOME", home / ".cargo")): "/cargo",
        Path(os.environ.get("RUSTUP_HOME", home / ".rustup")): "/rustup",
        tools.folder: "/tools",
        target_folder: "/target",
    }


def build_environment(
    target_folder: Path, platform: Platform, tools: Tools, epoch: int, folders: dict[Path, str]
) -> dict[str, str]:
    """Returns the variables of a build whose program does not depend on where `folders` are."""
    compilers = write_compilers(target_folder / "compilers", platform, tools, folders)
    variable = platform.rust.replace("-", "_")
    return {
        "PATH": f"{tools.cargo_bin}:{os.environ['PATH']}",
        "SOURCE_DATE_EPOCH": str(epoch),
        "CARGO_TARGET_DIR": str(target_folder),
        "CARGO_ENCODED_RUSTFLAGS": "\x1f".join(["-Clinker=rust-lld", "-Clinker-flavor=ld.lld"]),
        # Cargo applies flags to the program's crates alone. Macros and build scripts need the
        # renamed folders, too: what they are named after is in the crates that use them.
        "RUSTC_WRAPPER": str(compilers / "rustc"),
        # What `cargo auditable` sets, without the path of the tool: Cargo hashes this variable into
        # the names of the workspace's crates.
        "RUSTC_WORKSPACE_WRAPPER": "cargo-auditable",
        "CARGO_AUDITABLE_ORIG_ARGS": json.dumps(
            {"offline": False, "locked": True, "frozen": False, "config": []}
        ),
        f"CC_{variable}": str(compilers / "cc"),
        f"AR_{variable}": str(compilers / "ar"),
        f"RANLIB_{variable}": str(compilers / "ranlib"),
        "ZIG_GLOBAL_CACHE_DIR": str(target_folder / "zig"),
        "ZIG_LOCAL_CACHE_DIR": str(target_folder / "zig"),
        **dict(platform.environment),
    }


def write_compilers(
    folder: Path, platform: Platform, tools: Tools, folders: dict[Path, str]
) -> Path:
    """Writes scripts that compile Rust and C for a platform and rename folders.

    Returns the folder of the scripts.
    """
    folder = folder / platform.rust
    folder.mkdir(parents=True, exist_ok=True)
    rust = rename_flags("--remap-path-prefix", folders)
    c = rename_flags("-ffile-prefix-map", folders)
    zig = f"exec {shlex.quote(str(tools.python))} -m ziglang"
    # Build scripts name the target as Rust does, which Zig does not understand. Without optimization
    # (aws-lc's source of entropy) Zig adds checks of undefined behaviour, whose runtime Rust lacks.
    scripts = {
        "rustc": f'exec "$@" {rust}\n',
        "cc": f"""for word do
    shift
    case $word in --target=*) ;; *) set -- "$@" "$word" ;; esac
done
{zig} cc -target {platform.zig} -fno-sanitize=undefined {c} "$@"
""",
        "ar": f'{zig} ar "$@"\n',
        "ranlib": f'{zig} ranlib "$@"\n',
    }
    for name, body in scripts.items():
        path = folder / name
        path.write_text("#!/bin/sh\n" + body)
        path.chmod(0o755)
    return folder


def rename_flags(flag: str, folders: dict[Path, str]) -> str:
    """Returns a compiler's flags that rename folders, for a shell."""
    return shlex.join(f"{flag}={path}={name}" for path, name in folders.items())


def check_program(program: Path, folders: dict[Path, str]) -> None:
    """Fails if a program lacks the list of its crates, or names a folder of this machine.

    Builds elsewhere would have other bytes.
    """
    content = program.read_bytes()
    if AUDIT_SECTION not in content:
        raise ValueError(f"{program} has no list of its crates: cargo-auditable did not link it")
    for folder, name in folders.items():
        # A name such as `/src` is also a part of other paths.
        if len(folder.parts) < 3 or str(folder) == name:
            continue
        at = content.find(f"{folder}/".encode())
        if at >= 0:
            found = re.match(rb"[ -~]{1,200}", content[at:])[0].decode()
            raise ValueError(f"{program} names a folder of this machine: {found}")


def run(command: list, cwd: Path | None = None, **environment: str) -> None:
    """Runs a command, with variables besides this process's."""
    subprocess.run(command, check=True, cwd=cwd, env=os.environ | environment)
