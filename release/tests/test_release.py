"""Tests of what a release is made of, on small programs. Building the real one takes minutes."""

import gzip
import hashlib
import io
import json
import os
import re
import subprocess
import sys
import tarfile
import tempfile
import unittest
from pathlib import Path

TOP = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(TOP / "release"))

from archive import Entry, folder_entries, tar  # noqa: E402
from artifacts import Release, chart, check_folder, check_versions, documents  # noqa: E402
from compiler import (  # noqa: E402
    AUDIT_SECTION,
    PLATFORMS,
    Tools,
    build_environment,
    check_program,
    renamed_folders,
    write_compilers,
)
from image import ImageSource, image_layout  # noqa: E402
from notes import release_notes  # noqa: E402
from packages import SETTINGS, package_entries  # noqa: E402
from provenance import statement  # noqa: E402
from sbom import crate_component, crates, software_bill  # noqa: E402
from signing import sign, write_checksums  # noqa: E402

EPOCH = 1_700_000_000
# Prints a completion, and writes a manual page.
FAKE_PROGRAM = """#!/bin/sh
case $1 in
    completion) echo "complete $2" ;;
    man) echo page > "$2/watershed.1" ;;
esac
"""


def unpack(archive: bytes) -> dict[str, bytes]:
    """Returns the files of a tar archive."""
    with tarfile.open(fileobj=io.BytesIO(archive)) as opened:
        return {it.name: opened.extractfile(it).read() for it in opened if it.isfile()}


def layout_faults(archive: bytes) -> list[str]:
    """Follows the descriptors of an image layout, and returns what is wrong with them."""
    files = unpack(archive)
    faults = []
    seen = {"oci-layout", "index.json"}

    def blob(descriptor: dict) -> bytes:
        algorithm, digest = descriptor["digest"].split(":")
        path = f"blobs/{algorithm}/{digest}"
        content = files.get(path, b"")
        seen.add(path)
        if hashlib.sha256(content).hexdigest() != digest:
            faults.append(f"{path} has another digest")
        if len(content) != descriptor["size"]:
            faults.append(f"{path} has another size")
        return content

    for top in json.loads(files["index.json"])["manifests"]:
        for platform in json.loads(blob(top)).get("manifests", []):
            manifest = json.loads(blob(platform))
            config = json.loads(blob(manifest["config"]))
            if config["architecture"] != platform["platform"]["architecture"]:
                faults.append("an image is listed for another platform")
            layers = [gzip.decompress(blob(layer)) for layer in manifest["layers"]]
            ids = [f"sha256:{hashlib.sha256(layer).hexdigest()}" for layer in layers]
            if ids != config["rootfs"]["diff_ids"]:
                faults.append("a layer is not the one of the configuration")
    faults += [f"{path} belongs to nothing" for path in files.keys() - seen]
    return faults


def example_layout() -> bytes:
    """Returns a layout with two small programs."""
    source = ImageSource(
        "1.2.3", "abc", "https://example.com/watershed", EPOCH, b"roots", b"licences"
    )
    return image_layout(source, {"amd64": b"program a", "arm64": b"program b"})


class Archives(unittest.TestCase):
    def test_bytes_do_not_depend_on_order_time_and_owner_of_files(self):
        with tempfile.TemporaryDirectory() as one, tempfile.TemporaryDirectory() as other:
            for folder, names in [(one, ["a", "b/c"]), (other, ["b/c", "a"])]:
                for age, name in enumerate(names):
                    path = Path(folder, name)
                    path.parent.mkdir(exist_ok=True)
                    path.write_text(name)
                    os.utime(path, (age, age))
            archives = [tar(folder_entries(Path(folder), "x"), EPOCH) for folder in (one, other)]
        self.assertEqual(*archives)
        with tarfile.open(fileobj=io.BytesIO(archives[0])) as opened:
            entries = [(it.name, it.mtime, it.uid, it.uname, it.mode) for it in opened]
        self.assertEqual(
            entries,
            [
                ("x", EPOCH, 0, "root", 0o755),
                ("x/a", EPOCH, 0, "root", 0o644),
                ("x/b", EPOCH, 0, "root", 0o755),
                ("x/b/c", EPOCH, 0, "root", 0o644),
            ],
        )

    def test_chart_has_what_helm_would_package(self):
        release = Release(TOP, "1.2.3", "abc", EPOCH, "", "")
        files = unpack(gzip.decompress(chart(release)))
        self.assertIn("watershed/Chart.yaml", files)
        self.assertIn("watershed/templates/_pod.tpl", files)
        self.assertIn("watershed/examples/everything.yaml", files)
        self.assertNotIn(b"home: ", files["watershed/Chart.yaml"])

    def test_links_of_the_charts_document_lead_somewhere(self):
        release = Release(TOP, "1.2.3", "abc", EPOCH, "https://example.com/watershed", "")
        files = unpack(gzip.decompress(chart(release)))
        sources = b"\nhome: https://example.com/watershed\nsources:\n  - https://example.com/watershed\n"
        self.assertTrue(files["watershed/Chart.yaml"].endswith(sources))
        links = re.findall(r"\]\(([^)#]+)", files["watershed/README.md"].decode())
        repository = "https://example.com/watershed/blob/v1.2.3/"
        self.assertIn(f"{repository}docs/operations.md", links)
        self.assertIn("examples/everything.yaml", links)
        for link in links:
            if link.startswith(repository):
                self.assertTrue((TOP / link.removeprefix(repository)).exists(), link)
            elif not link.startswith("https://"):
                self.assertIn(f"watershed/{link}", files)

    def test_packages_have_program_service_manual_and_completions(self):
        with tempfile.TemporaryDirectory() as folder:
            program = Path(folder, "watershed")
            program.write_text(FAKE_PROGRAM)
            program.chmod(0o755)
            beside = documents(program, TOP, b"licences")
        entries = {it.path: it for it in package_entries(b"program", beside)}
        self.assertEqual(entries["usr/bin/watershed"].mode, 0o755)
        self.assertEqual(entries["usr/share/man/man1/watershed.1"].content, b"page\n")
        completion = entries["usr/share/bash-completion/completions/watershed"]
        self.assertEqual(completion.content, b"complete bash\n")
        self.assertEqual(entries["usr/share/doc/watershed/copyright"].content, b"licences")
        service = entries["usr/lib/systemd/system/watershed.service"].content.decode()
        self.assertIn(f"EnvironmentFile=/{SETTINGS}\n", service)
        # Without a limit the proxy has no memory budget.
        self.assertIn("\nMemoryMax=", service)


class Images(unittest.TestCase):
    def test_every_descriptor_fits_its_blob(self):
        self.assertEqual(layout_faults(example_layout()), [])

    def test_a_changed_or_absent_blob_is_found(self):
        layout = unpack(example_layout())
        blobs = [path for path in layout if path.startswith("blobs/")]
        self.assertEqual(len(blobs), 8)
        for path in blobs:
            is_gzip = layout[path][:2] == b"\x1f\x8b"
            # Neither changes what is read.
            padded = layout[path] + (b"\0" if is_gzip else b" ")
            changed = [
                Entry(it, padded if it == path else content) for it, content in layout.items()
            ]
            self.assertNotEqual(layout_faults(tar(changed, EPOCH)), [], path)
        entries = [Entry(path, content) for path, content in layout.items()]
        more = [*entries, Entry("blobs/sha256/0", b"")]
        self.assertEqual(layout_faults(tar(more, EPOCH)), ["blobs/sha256/0 belongs to nothing"])
        layer = next(path for path in blobs if layout[path][:2] == b"\x1f\x8b")
        fewer = [it for it in entries if it.path != layer]
        self.assertIn(f"{layer} has another digest", layout_faults(tar(fewer, EPOCH)))

    def test_images_run_as_a_user_without_rights(self):
        files = unpack(example_layout())
        configs = [json.loads(it) for it in files.values() if b'"rootfs"' in it]
        self.assertEqual({it["architecture"] for it in configs}, {"amd64", "arm64"})
        for config in configs:
            self.assertEqual(config["config"]["User"], "65532:65532")
            self.assertEqual(config["created"], "2023-11-14T22:13:20Z")
            self.assertEqual(
                config["config"]["Labels"]["org.opencontainers.image.version"], "1.2.3"
            )
        layers = [unpack(gzip.decompress(it)) for it in files.values() if it[:2] == b"\x1f\x8b"]
        programs = {
            it["usr/local/bin/watershed"] for it in layers if "usr/local/bin/watershed" in it
        }
        self.assertEqual(programs, {b"program a", b"program b"})
        # One layer of certificates for both platforms.
        self.assertEqual(
            [it["etc/ssl/certs/ca-certificates.crt"] for it in layers if len(it) > 2], [b"roots"]
        )

    def test_layouts_of_the_same_inputs_are_the_same(self):
        self.assertEqual(example_layout(), example_layout())


class Signatures(unittest.TestCase):
    def setUp(self):
        temporary = tempfile.TemporaryDirectory()
        self.addCleanup(temporary.cleanup)
        self.out, self.keys = Path(temporary.name, "out"), Path(temporary.name, "keys")
        self.out.mkdir(), self.keys.mkdir()
        (self.out / "b").write_text("two")
        (self.out / "a").write_text("one")
        write_checksums(self.out)

    def checksums_hold(self) -> bool:
        check = subprocess.run(
            ["sha256sum", "--quiet", "-c", "SHA256SUMS"], cwd=self.out, capture_output=True
        )
        return check.returncode == 0

    def signature_holds(self) -> bool:
        """Runs the commands of docs/releases.md."""
        text = (TOP / "docs/releases.md").read_text()
        commands = [
            it for it in text.splitlines() if it.startswith(("openssl base64", "openssl dgst"))
        ]
        self.assertEqual(len(commands), 2)
        script = "\n".join(["set -e", *commands]).replace(
            "watershed.pub", str(self.keys / "public")
        )
        return (
            subprocess.run(["sh", "-c", script], cwd=self.out, capture_output=True).returncode == 0
        )

    def new_key(self) -> Path:
        """Makes a key pair, and returns the private one's path."""
        private = self.keys / "private"
        curve = ["-pkeyopt", "ec_paramgen_curve:P-256"]
        subprocess.run(
            ["openssl", "genpkey", "-quiet", "-algorithm", "EC", *curve, "-out", private],
            check=True,
        )
        public = ["openssl", "pkey", "-in", private, "-pubout", "-out", self.keys / "public"]
        subprocess.run(public, check=True)
        return private

    def test_a_changed_file_does_not_match_its_checksum(self):
        self.assertTrue(self.checksums_hold())
        (self.out / "a").write_text("another")
        self.assertFalse(self.checksums_hold())

    def test_documented_commands_verify_the_signature(self):
        key = self.new_key()
        sign(self.out, key)
        self.assertTrue(self.signature_holds())
        sums = self.out / "SHA256SUMS"
        sums.write_text(sums.read_text() + "0  c\n")
        self.assertFalse(self.signature_holds())

    def test_a_signature_by_another_key_is_refused(self):
        sign(self.out, self.new_key())
        self.new_key()
        self.assertFalse(self.signature_holds())

    def test_provenance_names_every_file_and_input(self):
        made = statement(self.out, TOP, "1.2.3", "https://example.com/watershed", "abc", "urn:me")
        names = [subject["name"] for subject in made["subject"]]
        self.assertEqual(names, ["SHA256SUMS", "a", "b"])
        self.assertEqual(made["subject"][1]["digest"]["sha256"], hashlib.sha256(b"one").hexdigest())
        inputs = made["predicate"]["buildDefinition"]["resolvedDependencies"]
        self.assertEqual(
            inputs[0], {"uri": "git+https://example.com/watershed", "digest": {"gitCommit": "abc"}}
        )
        lock = hashlib.sha256((TOP / "Cargo.lock").read_bytes()).hexdigest()
        self.assertEqual(inputs[1], {"name": "Cargo.lock", "digest": {"sha256": lock}})


class Notes(unittest.TestCase):
    CHANGELOG = """# Changelog

## [Unreleased]

- Next.

## [1.1.0] - 2026-01-02

### Added

- A thing ([docs](docs/a.md)).

## [1.0.0]

- First.

[1.1.0]: https://example.com/1.1.0
"""

    def test_notes_are_the_section_of_the_version(self):
        notes = release_notes(self.CHANGELOG, "1.1.0")
        self.assertEqual(
            notes, "# watershed 1.1.0\n\n### Added\n\n- A thing ([docs](docs/a.md)).\n"
        )

    def test_a_version_without_section_or_date_has_no_notes(self):
        for version in ("1.0.0", "2.0.0", "Unreleased"):
            with self.assertRaises(ValueError, msg=version):
                release_notes(self.CHANGELOG, version)

    def test_a_release_has_the_version_that_its_sources_name(self):
        with tempfile.TemporaryDirectory() as folder:
            source = Path(folder)
            (source / "helm/watershed").mkdir(parents=True)
            (source / "Cargo.toml").write_text('[workspace.package]\nversion = "1.1.0"\n')
            (source / "CHANGELOG.md").write_text(self.CHANGELOG)
            chart_file = source / "helm/watershed/Chart.yaml"
            release = Release(source, "1.1.0", "abc", EPOCH, "", "")
            chart_file.write_text("version: 1.1.0\nappVersion: 1.1.0\n")
            check_versions(release)
            chart_file.write_text("version: 1.1.0\nappVersion: 1.0.0\n")
            with self.assertRaises(ValueError):
                check_versions(release)


class Folders(unittest.TestCase):
    def test_a_folder_with_other_files_is_not_emptied(self):
        with tempfile.TemporaryDirectory() as folder:
            out = Path(folder)
            check_folder(out / "new")
            check_folder(out)
            (out / "thesis.txt").write_text("years of work")
            with self.assertRaisesRegex(ValueError, "SHA256SUMS"):
                check_folder(out)
            (out / "SHA256SUMS").write_text("")
            check_folder(out)


class Bill(unittest.TestCase):
    def test_bill_has_the_crates_of_the_program_and_not_those_of_tests(self):
        lock = (TOP / "Cargo.lock").read_text()
        bill = software_bill(crates(TOP), lock, "1.2.3", "abc", EPOCH)
        components = {it["name"]: it for it in bill["components"]}
        self.assertTrue({"rustls", "watershed-protocol", "tikv-jemallocator"} <= components.keys())
        self.assertFalse({"watershed-lab", "proptest", "criterion"} & components.keys())
        self.assertRegex(components["rustls"]["hashes"][0]["content"], "^[0-9a-f]{64}$")
        references = {it["bom-ref"] for it in bill["components"]} | {
            bill["metadata"]["component"]["bom-ref"]
        }
        for entry in bill["dependencies"]:
            self.assertLessEqual({entry["ref"], *entry["dependsOn"]}, references)

    def test_old_spelling_of_a_choice_of_licences_becomes_an_expression(self):
        package = {"name": "a", "version": "1.0.0", "source": None, "license": "MIT/Apache-2.0"}
        self.assertEqual(
            crate_component(package, {})["licenses"], [{"expression": "MIT OR Apache-2.0"}]
        )


class Compilers(unittest.TestCase):
    # As rustversion's, which is compiled for the machine that builds.
    INCLUDING_CRATE = 'include!(concat!(env!("OUT_DIR"), "/version.rs"));'

    def setUp(self):
        temporary = tempfile.TemporaryDirectory()
        self.addCleanup(temporary.cleanup)
        self.folder = Path(temporary.name)

    def scripts(self, source: Path, folders: dict[Path, str]) -> Path:
        """Writes the scripts for sources in a folder, and returns the folder of the scripts."""
        return write_compilers(source / "compilers", PLATFORMS[0], Tools(source / "tools"), folders)

    def crate(self, name: str, renamed: bool) -> bytes:
        """Returns what the script of rustc makes of a crate in a folder of this name."""
        source = self.folder / name
        objects = source / "target"
        objects.mkdir(parents=True)
        (source / "lib.rs").write_text(self.INCLUDING_CRATE)
        (objects / "version.rs").write_text("pub fn place() -> &'static str { file!() }")
        tools = Tools(source / "tools")
        scripts = self.scripts(source, renamed_folders(source, objects, tools) if renamed else {})
        library = objects / "libmade.rmeta"
        subprocess.run(
            [
                scripts / "rustc",
                "rustc",
                "--crate-type=lib",
                "--crate-name=made",
                "--emit=metadata",
                f"-o{library}",
                source / "lib.rs",
            ],
            check=True,
            cwd=TOP,
            env=os.environ | {"OUT_DIR": str(objects)},
        )
        return library.read_bytes()

    def test_crates_of_two_folders_have_the_same_bytes(self):
        self.assertEqual(self.crate("a", True), self.crate("another folder", True))

    def test_crates_of_two_folders_differ_where_folders_keep_their_names(self):
        self.assertNotEqual(self.crate("a", False), self.crate("another folder", False))

    def test_variables_that_cargo_hashes_have_no_paths(self):
        tools = Tools(self.folder / "tools")
        folders = renamed_folders(self.folder, self.folder / "target", tools)
        made = build_environment(self.folder / "target", PLATFORMS[0], tools, EPOCH, folders)
        for name in ("CARGO_ENCODED_RUSTFLAGS", "RUSTC_WORKSPACE_WRAPPER"):
            self.assertNotIn("/", made[name])

    def test_c_compiler_renames_the_most_special_folder_last(self):
        source = self.folder / "a folder"
        tools = Tools(source / "tools")
        tools.python.parent.mkdir(parents=True)
        tools.python.write_text("#!/bin/sh\nprintf '%s\\n' \"$@\"\n")
        tools.python.chmod(0o755)
        scripts = self.scripts(source, renamed_folders(source, source / "target", tools))
        command = [scripts / "cc", "--target=x86_64-unknown-linux-musl", "-c", "a b.c"]
        done = subprocess.run(command, check=True, capture_output=True, text=True)
        words = done.stdout.splitlines()
        self.assertEqual(words[:5], ["-m", "ziglang", "cc", "-target", "x86_64-linux-musl"])
        self.assertEqual(words[-2:], ["-c", "a b.c"])
        names = [it for it in words if it.startswith("-ffile-prefix-map=")]
        self.assertEqual(names[0], f"-ffile-prefix-map={source}=/source")
        self.assertEqual(names[-1], f"-ffile-prefix-map={source}/target=/target")

    def test_a_program_that_names_a_folder_of_this_machine_is_refused(self):
        program = self.folder / "program"
        folders = {self.folder: "/source", Path("/src"): "/short", Path("/source"): "/source"}
        program.write_bytes(AUDIT_SECTION + b"/source/main.rs/cargo/src/lib.rs\xff")
        check_program(program, folders)
        program.write_bytes(AUDIT_SECTION + b"file" + bytes(self.folder) + b"/src/main.rs\0")
        with self.assertRaisesRegex(ValueError, f": {self.folder}/src/main.rs$"):
            check_program(program, folders)

    def test_a_program_without_the_list_of_its_crates_is_refused(self):
        program = self.folder / "program"
        program.write_bytes(b"program")
        with self.assertRaisesRegex(ValueError, "no list of its crates"):
            check_program(program, {})


class Platforms(unittest.TestCase):
    def test_platforms_are_those_whose_dependencies_are_checked(self):
        checked = (TOP / "deny.toml").read_text()
        for platform in PLATFORMS:
            self.assertIn(f'"{platform.rust}"', checked)


if __name__ == "__main__":
    unittest.main()
