"""Compiles the program for each platform, as static binaries that any machine reproduces.

Rust's musl targets bring their C library and start-up objects, and rust-lld links them. Zig
compiles the C sources of the allocator and the cryptography for any target. So the host lends
neither headers nor libraries.
"""

import os
import subprocess
from dataclasses import dataclass
from pathlib import Path

RUST = "1.95.0"
CARGO_AUDITABLE = "0.7.7"


@dataclass(frozen=True)
class Platform:
    """A platform by its names in the formats that a release has."""

    oci: str
    rpm: str
    rust: str
    zig: str
    # Some arm64 kernels have pages of 64 KiB, which jemalloc must know when it is compiled.
    environment: tuple[tuple[str, str], ...] = ()


PLATFORMS = (
    Platform("amd64", "x86_64", "x86_64-unknown-linux-musl", "x86_64-linux-musl"),
    Platform(
        "arm64",
        "aarch64",
        "aarch64-unknown-linux-musl",
        "aarch64-linux-musl",
        (("JEMALLOC_SYS_WITH_LG_PAGE", "16"),),
    ),
)


@dataclass(frozen=True)
class Tools:
    """Folders of the tools that `prepare` installed."""

    python: Path
    cargo_bin: Path

    def certificates(self) -> bytes:
        """Returns the root certificates, in PEM."""
        code = "import certifi; print(certifi.where(), end='')"
        where = subprocess.run([self.python, "-c", code], check=True, capture_output=True)
        return Path(where.stdout.decode()).read_bytes()


def prepare(folder: Path, requirements: Path) -> Tools:
    """Installs what is missing of the tools into `folder`."""
    python = folder / "python" / "bin" / "python"
    if not python.exists():
        run(["python3", "-m", "venv", folder / "python"])
    pip = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
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
    return Tools(python, folder / "bin")


def compile_program(
    source: Path, target_folder: Path, platform: Platform, tools: Tools, epoch: int
) -> Path:
    """Builds the program as it is shipped, and returns its path."""
    environment = build_environment(source, target_folder, platform, tools, epoch)
    command = [
        "cargo",
        "auditable",
        "build",
        "--locked",
        "--profile",
        "dist",
        "--no-default-features",
    ]
    run([*command, "--bin", "watershed", "--target", platform.rust], cwd=source, **environment)
    return target_folder / platform.rust / "dist" / "watershed"


def build_environment(
    source: Path, target_folder: Path, platform: Platform, tools: Tools, epoch: int
) -> dict[str, str]:
    """Returns the variables of a build in which no path of this machine remains."""
    cargo_home = Path(os.environ.get("CARGO_HOME", Path.home() / ".cargo"))
    # Of several that match, the last counts: the folder of objects may be below the sources.
    renamed = {cargo_home: "/cargo", source: "/source", target_folder: "/target"}
    rust_flags = [f"--remap-path-prefix={path}={name}" for path, name in renamed.items()]
    rust_flags += ["-Clinker=rust-lld", "-Clinker-flavor=ld.lld"]
    c_flags = " ".join(f"-ffile-prefix-map={path}={name}" for path, name in renamed.items())
    compiler = write_c_compiler(target_folder, platform, tools)
    variable = platform.rust.replace("-", "_")
    return {
        "PATH": f"{tools.cargo_bin}:{os.environ['PATH']}",
        "SOURCE_DATE_EPOCH": str(epoch),
        "CARGO_TARGET_DIR": str(target_folder),
        "CARGO_ENCODED_RUSTFLAGS": "\x1f".join(rust_flags),
        f"CC_{variable}": str(compiler),
        f"CFLAGS_{variable}": c_flags,
        f"AR_{variable}": str(compiler.with_name("ar")),
        f"RANLIB_{variable}": str(compiler.with_name("ranlib")),
        "ZIG_GLOBAL_CACHE_DIR": str(target_folder / "zig"),
        "ZIG_LOCAL_CACHE_DIR": str(target_folder / "zig"),
        **dict(platform.environment),
    }


def write_c_compiler(target_folder: Path, platform: Platform, tools: Tools) -> Path:
    """Writes scripts that are Zig's C compiler and archiver for a platform."""
    folder = target_folder / "compilers" / platform.rust
    folder.mkdir(parents=True, exist_ok=True)
    zig = f'exec "{tools.python}" -m ziglang'
    # Build scripts name the target as Rust does, which Zig does not understand. Without optimization
    # (aws-lc's source of entropy) Zig adds checks of undefined behaviour, whose runtime Rust lacks.
    scripts = {
        "cc": f"""for word do
    shift
    case $word in --target=*) ;; *) set -- "$@" "$word" ;; esac
done
{zig} cc -target {platform.zig} -fno-sanitize=undefined "$@"
""",
        "ar": f'{zig} ar "$@"\n',
        "ranlib": f'{zig} ranlib "$@"\n',
    }
    for name, body in scripts.items():
        path = folder / name
        path.write_text("#!/bin/sh\n" + body)
        path.chmod(0o755)
    return folder / "cc"


def run(command: list, cwd: Path | None = None, **environment: str) -> None:
    """Runs a command, with variables besides this process's."""
    subprocess.run(command, check=True, cwd=cwd, env=os.environ | environment)
