"""Python's kubernetes client through watershed, in front of a real kube-apiserver.

`make test-python` runs it. It installs the client, so it is not a part of `make test`.
"""

import json
import os
import subprocess
import threading
import unittest

from kubernetes import client, config, dynamic, watch

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")
HARNESS = os.path.join(ROOT, "tests", "real", ".bin", "cluster")
PROGRAM = os.environ.get("WATERSHED_BIN", os.path.join(ROOT, "target", "debug", "watershed"))


class Client(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        # The harness stops when its standard input ends, so it cannot outlive this process.
        cls.harness = subprocess.Popen(
            [HARNESS, "--proxy", PROGRAM], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        )
        cls.addClassCleanup(cls.stop)
        cluster = json.loads(cls.harness.stdout.readline())
        cls.upstream = config.new_client_from_config(cluster["kubeconfig"])
        cls.proxied = config.new_client_from_config(cluster["kubeconfig_via_proxy"])
        cls.source = client.CoreV1Api(cls.upstream)
        cls.core = client.CoreV1Api(cls.proxied)

    @classmethod
    def stop(cls):
        cls.harness.stdin.close()
        cls.harness.wait()
        cls.harness.stdout.close()

    def make(self, name, labels=None):
        body = client.V1ConfigMap(metadata=client.V1ObjectMeta(name=name, labels=labels), data={"k": name})
        return self.source.create_namespaced_config_map("default", body)

    def test_lists_are_equal(self):
        for n in range(7):
            made = self.make(f"list-{n}", {"odd": str(n % 2)})
        options = {"resource_version": made.metadata.resource_version}
        for more in ({}, {"label_selector": "odd=1"}, {"limit": 3}, {"resource_version_match": "NotOlderThan"}):
            want = self.source.list_namespaced_config_map("default", **options, **more)
            got = self.core.list_namespaced_config_map("default", **options, **more)
            self.assertEqual(names(want), names(got), more)
        # The usual loop over pages.
        paged, token = [], None
        while True:
            page = self.core.list_namespaced_config_map("default", limit=2, _continue=token)
            paged += names(page)
            token = page.metadata._continue
            if not token:
                break
        self.assertEqual(paged, names(self.source.list_namespaced_config_map("default")))

    def test_a_watch_sees_every_event(self):
        start = self.core.list_namespaced_config_map("default", resource_version="0").metadata.resource_version
        seen, streams = [], watch.Watch()

        def follow():
            for event in streams.stream(
                self.core.list_namespaced_config_map,
                "default",
                label_selector="watched=yes",
                resource_version=start,
                allow_watch_bookmarks=True,
                timeout_seconds=60,
            ):
                if event["type"] != "BOOKMARK":
                    seen.append((event["type"], event["object"].metadata.name))
                if seen and seen[-1] == ("ADDED", "last"):
                    streams.stop()

        thread = threading.Thread(target=follow)
        thread.start()
        expected = []
        for n in range(20):
            self.make(f"watched-{n}", {"watched": "yes"})
            expected.append(("ADDED", f"watched-{n}"))
        for n in range(0, 20, 2):
            patch = {"metadata": {"labels": {"watched": "no"}}}
            self.source.patch_namespaced_config_map(f"watched-{n}", "default", patch)
            expected.append(("DELETED", f"watched-{n}"))
        for n in range(1, 20, 2):
            self.source.delete_namespaced_config_map(f"watched-{n}", "default")
            expected.append(("DELETED", f"watched-{n}"))
        self.make("last", {"watched": "yes"})
        thread.join(60)
        self.assertEqual(seen, expected + [("ADDED", "last")])

    def test_odd_versions_are_answered_alike(self):
        def outcome(core, version):
            stream = watch.Watch().stream(
                core.list_namespaced_secret, "default", resource_version=version, timeout_seconds=2
            )
            try:
                return [event["type"] for event in stream]
            except client.ApiException as error:
                return (error.status, error.reason)

        for version in ("1", "0", "", "99999999999", "x"):
            self.assertEqual(outcome(self.source, version), outcome(self.core, version), version)

    def test_writes_arrive_and_refusals_are_passed_on(self):
        body = client.V1ConfigMap(metadata=client.V1ObjectMeta(name="written"), data={"k": "v"})
        self.core.create_namespaced_config_map("default", body)
        self.assertEqual(self.core.read_namespaced_config_map("written", "default").data, {"k": "v"})
        with self.assertRaises(client.ApiException) as raised:
            self.core.create_namespaced_config_map("default", body)
        self.assertEqual(raised.exception.status, 409)
        self.core.delete_namespaced_config_map("written", "default")
        with self.assertRaises(client.ApiException) as raised:
            self.core.read_namespaced_config_map("written", "default", _preload_content=False)
        self.assertEqual(raised.exception.status, 404)

    def test_the_dynamic_client_finds_objects(self):
        self.make("dynamic")
        api = dynamic.DynamicClient(self.proxied).resources.get(api_version="v1", kind="ConfigMap")
        found = api.get(namespace="default", field_selector="metadata.name=dynamic")
        self.assertEqual([item.metadata.name for item in found.items], ["dynamic"])


def names(listed):
    return [(item.metadata.name, item.metadata.resource_version) for item in listed.items]


if __name__ == "__main__":
    unittest.main()
