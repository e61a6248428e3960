"""An OCI image layout with an image for each platform, made without a container engine.

The image has the program, root certificates and a user, and nothing else.
https://github.com/opencontainers/image-spec/blob/v1.1.1/image-layout.md
"""

import hashlib
import json
from dataclasses import dataclass, field
from datetime import datetime, timezone

from archive import Entry, gzip, tar

USER = 65532
MANIFEST = "application/vnd.oci.image.manifest.v1+json"
INDEX = "application/vnd.oci.image.index.v1+json"
CONFIG = "application/vnd.oci.image.config.v1+json"
LAYER = "application/vnd.oci.image.layer.v1.tar+gzip"


@dataclass
class Layout:
    """The blobs of a layout, by digest."""

    blobs: dict[str, bytes] = field(default_factory=dict)

    def add(self, media_type: str, content: bytes) -> dict:
        """Adds a blob, and returns its descriptor."""
        digest = hashlib.sha256(content).hexdigest()
        self.blobs[digest] = content
        return {"mediaType": media_type, "digest": f"sha256:{digest}", "size": len(content)}

    def add_json(self, media_type: str, value: dict) -> dict:
        """Adds a JSON document, and returns its descriptor."""
        return self.add(media_type, to_json(value))


@dataclass(frozen=True)
class ImageSource:
    """What all platforms' images share."""

    version: str
    revision: str
    source: str
    epoch: int
    certificates: bytes
    licences: bytes

    def labels(self) -> dict[str, str]:
        """Returns the annotations that the OCI defines."""
        labels = {
            "created": rfc3339(self.epoch),
            "description": "A caching reverse proxy and watch multiplexer for the Kubernetes API",
            "licenses": "Apache-2.0",
            "revision": self.revision,
            "source": self.source,
            "title": "watershed",
            "version": self.version,
        }
        return {f"org.opencontainers.image.{name}": text for name, text in labels.items() if text}


def image_layout(source: ImageSource, programs: dict[str, bytes]) -> bytes:
    """Returns a tar archive of the layout; `programs` has the program of each architecture."""
    layout = Layout()
    common = root_layer(source)
    manifests = [
        platform_image(layout, source, common, *program) for program in sorted(programs.items())
    ]
    index = {
        "schemaVersion": 2,
        "mediaType": INDEX,
        "manifests": manifests,
        "annotations": source.labels(),
    }
    top = layout.add_json(INDEX, index)
    top["annotations"] = {
        "io.containerd.image.name": f"watershed:{source.version}",
        "org.opencontainers.image.ref.name": source.version,
    }
    files = [
        Entry("oci-layout", to_json({"imageLayoutVersion": "1.0.0"})),
        Entry("index.json", to_json({"schemaVersion": 2, "mediaType": INDEX, "manifests": [top]})),
    ]
    files += [Entry(f"blobs/sha256/{digest}", blob) for digest, blob in layout.blobs.items()]
    return tar(files, source.epoch)


def root_layer(source: ImageSource) -> bytes:
    """Returns the layer of everything but the program. It stays the same for many releases."""
    home = "/home/nonroot"
    users = f"root:x:0:0:root:/root:/sbin/nologin\nnonroot:x:{USER}:{USER}:nonroot:{home}:/sbin/nologin\n"
    groups = f"root:x:0:\nnonroot:x:{USER}:\n"
    # A fixed time, so that registries and nodes have the layer already.
    return tar(
        [
            Entry("etc/group", groups.encode()),
            Entry("etc/passwd", users.encode()),
            Entry("etc/ssl/certs/ca-certificates.crt", source.certificates),
            Entry("tmp", None, 0o1777),
        ],
        0,
    )


def platform_image(
    layout: Layout, source: ImageSource, common: bytes, architecture: str, program: bytes
) -> dict:
    """Adds the image of a platform, and returns the descriptor of its manifest."""
    own = tar(
        [
            Entry("usr/local/bin/watershed", program, 0o755),
            Entry("usr/share/doc/watershed/copyright", source.licences),
        ],
        source.epoch,
    )
    layers = [common, own]
    config = {
        "architecture": architecture,
        "os": "linux",
        "created": rfc3339(source.epoch),
        "config": {
            "User": f"{USER}:{USER}",
            "Env": ["PATH=/usr/local/bin", "SSL_CERT_FILE=/etc/ssl/certs/ca-certificates.crt"],
            "Entrypoint": ["/usr/local/bin/watershed"],
            "Cmd": ["serve"],
            "WorkingDir": "/",
            "Labels": source.labels(),
        },
        "rootfs": {
            "type": "layers",
            "diff_ids": [f"sha256:{hashlib.sha256(it).hexdigest()}" for it in layers],
        },
        "history": [
            {"created": rfc3339(0), "created_by": "root certificates and users"},
            {"created": rfc3339(source.epoch), "created_by": f"watershed {source.version}"},
        ],
    }
    manifest = {
        "schemaVersion": 2,
        "mediaType": MANIFEST,
        "config": layout.add_json(CONFIG, config),
        "layers": [layout.add(LAYER, gzip(layer)) for layer in layers],
        "annotations": source.labels(),
    }
    platform = {"architecture": architecture, "os": "linux"}
    return layout.add_json(MANIFEST, manifest) | {"platform": platform}


def rfc3339(epoch: int) -> str:
    """Returns a time as the OCI writes it."""
    return datetime.fromtimestamp(epoch, timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")


def to_json(value: dict) -> bytes:
    """Returns a document with sorted members."""
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()
