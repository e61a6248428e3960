#!/usr/bin/env python3
"""Computes what a cluster costs its API servers, and what proxies in front of them need.

docs/scaling.md explains the model and shows its output. Every input is a flag:

    tests/lab/scaling.py --nodes 5000 --pods 150000 --zones 1
"""
import argparse
from dataclasses import dataclass

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30


@dataclass
class Cluster:
    """The cluster, and how it is read. Defaults are docs/scaling.md's example."""

    nodes: int = 10_000
    pods: int = 500_000
    zones: int = 3
    api_servers: int = 3
    # Replicas of the zone tier in each zone.
    replicas: int = 2
    # Agents on each node, each with a watch of the node's pods and one of the node.
    agents: int = 3
    # Clients that follow all pods: controllers, operators, monitoring.
    central: int = 20
    # Changes of pods a second, in the whole cluster.
    changes: float = 200.0
    # Life of a watch, after which its client opens it again: client-go takes 5 to 10 minutes.
    watch_minutes: float = 7.5
    # The same of a proxy's own watches at another proxy, which ends them after half to one hour.
    proxy_watch_minutes: float = 45.0
    # Minutes over which a rollout replaces all proxies, or agents.
    rollout_minutes: float = 30.0


@dataclass
class Costs:
    """Unit costs: docs/benchmarks.md, in the rows that docs/scaling.md names."""

    object_bytes: float = 4400.0
    # An object in protobuf, and what gzip leaves of it.
    protobuf_share: float = 0.55
    gzip_share: float = 0.45
    # Memory of cached objects, over the bytes of their list.
    resident_share: float = 1.25
    # The previous state of an event, held as a difference.
    delta_bytes: float = 300.0
    window_seconds: float = 300.0
    connection: float = 34.8 * KIB
    shared_watch: float = 2.08 * KIB
    api_connection: float = 89.4 * KIB
    api_shared_watch: float = 27.6 * KIB
    # CPU seconds.
    event: float = 226e-6
    delivery: float = 25.7e-6
    api_delivery: float = 62e-6
    list_object: float = 41.4e-3 / 10_000
    api_list_object: float = 624e-3 / 10_000
    api_request: float = 1345e-6
    # What a node's proxy adds at upstream: requests when it starts, and in an hour of its own. Reviews
    # of tokens come on top, one for each watch that an agent begins.
    node_start_requests: float = 13.0
    node_hourly_requests: float = 42.0
    # Watches at upstream of a node's proxy, and of a replica of the tier with its connections.
    node_watches: float = 4.0
    replica_watches: float = 10.0
    replica_connections: float = 2.0


@dataclass
class Load:
    """Costs of one set-up."""

    name: str
    api_watches: float
    api_connections: float
    api_deliveries: float
    api_requests: float
    # Bytes a second that leave the API servers, and those that pass between zones.
    api_bytes: float
    between_zones: float
    # Bytes that the API servers send when all that is in front of them starts.
    start_bytes: float
    # CPU seconds of the API servers for that.
    start_cpu: float
    replica: "Replica | None" = None


@dataclass
class Replica:
    """One proxy of the zone tier."""

    memory: float
    cores: float
    connections: float
    watches: float
    bytes: float


def wire(costs: Costs) -> float:
    """Returns the bytes of an object in protobuf with gzip."""
    return costs.object_bytes * costs.protobuf_share * costs.gzip_share


def outside(cluster: Cluster) -> float:
    """Returns the share of traffic that crosses zones if nobody minds zones."""
    return 1 - 1 / cluster.zones


def on_nodes_hourly(cluster: Cluster, costs: Costs) -> float:
    """Returns the requests an hour of one node's proxy, with those that its agents cause."""
    begun = cluster.agents * 2 * 60 / cluster.watch_minutes
    return costs.node_hourly_requests + begun


def direct(cluster: Cluster, costs: Costs) -> Load:
    """Returns the load without any proxy."""
    watches = cluster.nodes * cluster.agents * 2 + cluster.central
    deliveries = cluster.changes * (cluster.agents + cluster.central)
    objects = cluster.pods * (cluster.agents + cluster.central)
    sent = deliveries * wire(costs)
    return Load(
        name="no proxy",
        api_watches=watches,
        api_connections=cluster.nodes * cluster.agents + cluster.central,
        api_deliveries=deliveries,
        api_requests=watches / (cluster.watch_minutes * 60),
        api_bytes=sent,
        between_zones=sent * outside(cluster),
        start_bytes=objects * wire(costs),
        start_cpu=objects * costs.api_list_object,
    )


def node_proxies(cluster: Cluster, costs: Costs) -> Load:
    """Returns the load of a proxy on each node, without a zone tier."""
    watches = cluster.nodes * costs.node_watches + cluster.central
    deliveries = cluster.changes * (1 + cluster.central)
    objects = cluster.pods * (1 + cluster.central)
    sent = deliveries * wire(costs)
    return Load(
        name="a proxy on each node",
        api_watches=watches,
        api_connections=cluster.nodes + cluster.central,
        api_deliveries=deliveries,
        api_requests=cluster.nodes * on_nodes_hourly(cluster, costs) / 3600,
        api_bytes=sent,
        between_zones=sent * outside(cluster),
        start_bytes=objects * wire(costs),
        start_cpu=objects * costs.api_list_object
        + cluster.nodes * costs.node_start_requests * costs.api_request,
    )


def zone_tier(cluster: Cluster, costs: Costs, on_nodes: bool) -> Load:
    """Returns the load of a zone tier, with the agents or with a proxy on each node behind it."""
    tier = cluster.zones * cluster.replicas
    deliveries = cluster.changes * tier
    clients = 1 if on_nodes else cluster.agents
    # What the tier asks for a client: reviews of its token and rights when watches begin again.
    clients_watches = cluster.nodes * (costs.node_watches if on_nodes else clients * 2)
    life = cluster.proxy_watch_minutes if on_nodes else cluster.watch_minutes
    reviews = clients_watches / (life * 60)
    own = cluster.nodes * on_nodes_hourly(cluster, costs) / 3600 if on_nodes else 0
    below = cluster.changes * (clients + cluster.central) / tier
    name = "zone tier, a proxy on each node" if on_nodes else "zone tier"
    memory = (
        cluster.pods * costs.object_bytes * costs.protobuf_share * costs.resident_share
        + cluster.changes * costs.window_seconds * (costs.object_bytes * costs.protobuf_share + costs.delta_bytes)
        + (cluster.nodes * clients + cluster.central) / tier * costs.connection
        + clients_watches / tier * costs.shared_watch
    )
    return Load(
        name=name,
        api_watches=tier * costs.replica_watches,
        api_connections=tier * costs.replica_connections,
        api_deliveries=deliveries,
        api_requests=reviews + own,
        api_bytes=deliveries * wire(costs),
        between_zones=deliveries * wire(costs) * outside(cluster),
        start_bytes=cluster.pods * tier * wire(costs),
        start_cpu=cluster.pods * tier * costs.api_list_object
        + (cluster.nodes * costs.node_start_requests * costs.api_request if on_nodes else 0),
        replica=Replica(
            memory=memory,
            cores=cluster.changes * costs.event + below * costs.delivery,
            connections=(cluster.nodes * clients + cluster.central) / tier,
            watches=clients_watches / tier,
            bytes=below * wire(costs),
        ),
    )


def table(loads: list[Load], cluster: Cluster, costs: Costs) -> str:
    """Returns the loads as a Markdown table."""

    def memory(load: Load) -> float:
        return load.api_connections * costs.api_connection + load.api_watches * costs.api_shared_watch

    rows = [
        ("watches", lambda l: f"{l.api_watches:,.0f}"),
        ("connections", lambda l: f"{l.api_connections:,.0f}"),
        ("memory of both (MiB)", lambda l: f"{memory(l) / MIB:,.1f}"),
        ("deliveries of events a second", lambda l: f"{l.api_deliveries:,.0f}"),
        ("CPU of deliveries (cores)", lambda l: f"{l.api_deliveries * costs.api_delivery:.2f}"),
        ("requests a second", lambda l: f"{l.api_requests:,.0f}"),
        ("CPU of requests (cores)", lambda l: f"{l.api_requests * costs.api_request:.2f}"),
        ("bytes of events (MB/s)", lambda l: f"{l.api_bytes / 1e6:.2f}"),
        ("of these between zones (MB/s)", lambda l: f"{l.between_zones / 1e6:.2f}"),
        ("all start: bytes (GB)", lambda l: f"{l.start_bytes / 1e9:.2f}"),
        ("all start: CPU (s)", lambda l: f"{l.start_cpu:,.0f}"),
    ]
    head = "| at the API servers, together | " + " | ".join(l.name for l in loads) + " |"
    lines = [head, "|---|" + "--:|" * len(loads)]
    lines += [f"| {name} | " + " | ".join(cell(l) for l in loads) + " |" for name, cell in rows]
    tiers = [l for l in loads if l.replica]
    lines += ["", "| a replica of the tier | " + " | ".join(l.name for l in tiers) + " |"]
    lines += ["|---|" + "--:|" * len(tiers)]
    parts = [
        ("memory (GiB)", lambda r: f"{r.memory / GIB:.2f}"),
        ("CPU of events and deliveries (cores)", lambda r: f"{r.cores:.2f}"),
        ("connections of clients", lambda r: f"{r.connections:,.0f}"),
        ("watches of clients", lambda r: f"{r.watches:,.0f}"),
        ("bytes of events to clients (MB/s)", lambda r: f"{r.bytes / 1e6:.2f}"),
    ]
    lines += [f"| {name} | " + " | ".join(cell(l.replica) for l in tiers) + " |" for name, cell in parts]
    return "\n".join(lines)


def arguments() -> tuple[Cluster, Costs]:
    """Reads the inputs from the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    groups = (Cluster(), Costs())
    for group in groups:
        for name, default in vars(group).items():
            flag = "--" + name.replace("_", "-")
            parser.add_argument(flag, type=type(default), default=default, help=f"default: {default}")
    given = vars(parser.parse_args())
    for group in groups:
        for name in vars(group):
            setattr(group, name, given[name])
    return groups


def main() -> None:
    cluster, costs = arguments()
    loads = [
        direct(cluster, costs),
        node_proxies(cluster, costs),
        zone_tier(cluster, costs, on_nodes=False),
        zone_tier(cluster, costs, on_nodes=True),
    ]
    print(table(loads, cluster, costs))


if __name__ == "__main__":
    main()
