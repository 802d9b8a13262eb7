"""What commands of vLLM and SGLang have in common: how those of a server open, and those of their routers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from steptime.launching.asked import NAMES, Asked, unsaid
from steptime.launching.hosts import Replica
from steptime.launching.script import Command
from steptime.numbers import Number
from steptime.planning.deployment import Plan
from steptime.planning.served import Served

Flags = tuple[list[str], str, list[str]]  # of the weights' formats, the word that names the checkpoint, what that must be
Exchange = tuple[list[str], dict[str, str], list[str]]  # flags of the experts, their environment, notes


def opened(
    asked: Asked,
    engine: str,
    program: str,
    *,
    axes: Sequence[str],
    weights: Flags,
    experts: Exchange,
    caches: Mapping[str, str],
    room: Sequence[str],
    counted: Sequence[str],
) -> Command:
    """Return how the command of a server opens: its layout, formats and limits, with what is to be said of them.

    axes: flags of the layout; caches: the engine's names of the formats that it keeps a KV cache in; room: flags of the limits;
    counted: what limits count for.
    """
    quantised, place, missing = weights
    exchange, environment, notes = experts
    cached, uncached = cache(asked.served, engine, caches)
    trust = ["--trust-remote-code"] if asked.served.remote_code else []
    return Command(
        words=(f"{program} {place}", *axes, *exchange, *quantised, *trust, *cached, *room),
        environment=environment,
        notes=(*missing, *counted, *notes, *uncached, *unsaid(asked, engine)),
    )


def ways(flags: Mapping[str, Number]) -> list[str]:
    """Return the flags of axes that have more ways than one.

    >>> ways({"--pp-size": 1, "--ep-size": 8.0})
    ['--ep-size 8']
    """
    return [f"{flag} {int(n)}" for flag, n in flags.items() if n > 1]


def cache(served: Served, engine: str, caches: Mapping[str, str]) -> tuple[list[str], list[str]]:
    """Return the flag of the cache's format, wherever an engine would take another by itself, and what it cannot do."""
    if served.kv not in caches:
        return [], [f"{NAMES[engine]} keeps no KV cache in {served.kv}: expect another size of it"]
    alone = served.kv == served.checkpoint_kv == "bf16"
    return ([] if alone else [f"--kv-cache-dtype {caches[served.kv]}"]), []


def routed(
    plan: Plan,
    replicas: tuple[Replica, ...],
    ports: Mapping[Replica, int],
    port: int,
    *,
    program: str,
    pools: str,
    beside: Mapping[Replica, str],
) -> Command:
    """Return the command of a router before several servers.

    pools: flags that tell it of a prefill and a decode pool; beside: what follows the address of a replica.
    """
    urls = {r: f"http://${r.variable}:{ports[r]}" for r in replicas}
    if len(plan.pools) > 1:
        servers = [pools, *(f"--{r.role} {url}{beside.get(r, '')}" for r, url in urls.items())]
    else:
        servers = ["--worker-urls " + " ".join(urls.values())]
    policy = "cache_aware" if plan.workload.cached_share > 0 else "round_robin"
    return Command(words=(program, *servers, f"--policy {policy}", "--host 0.0.0.0", f"--port {port}"))
