"""What Redis and Valkey tell of themselves with INFO, which no service forbids as CONFIG is, and of the queues."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .broker import Memory, Queues, opened

__all__ = ["RedisState", "look"]


@dataclass(frozen=True, slots=True)
class RedisState:
    """A Redis or Valkey as a broker."""

    name: str  # Redis or Valkey
    version: str
    is_replica: bool
    memory: Memory
    is_persistent: bool  # an append-only file
    write_error: str | None  # what keeps it from writing its file, or from taking writes because of that
    clients: int
    max_clients: int
    queues: Queues


def look(url: str, names: Sequence[str]) -> RedisState:
    """Ask the server about itself and about the queues of these names.

    Raises:
        BrokerUnavailable: it does not answer.
    """
    with opened(url) as connection:
        channel: Any = connection.default_channel
        client = channel.client
        info: Mapping[str, Any] = client.info()
        waiting: dict[str, int | None] = {name: int(channel._size(name)) for name in names}  # noqa: SLF001  # kombu counts its priorities' lists
        in_hands = int(client.hlen(channel.unacked_key))
    valkey = info.get("valkey_version")
    failed = [name for name in ("rdb_last_bgsave_status", "aof_last_write_status") if info.get(name, "ok") != "ok"]
    return RedisState(
        name="Valkey" if valkey else "Redis",
        version=str(valkey or info.get("redis_version", "?")),
        is_replica=info.get("role") not in {"master", None},
        memory=Memory(
            int(info.get("used_memory", 0)), int(info.get("maxmemory", 0)), str(info.get("maxmemory_policy", "?"))
        ),
        is_persistent=bool(info.get("aof_enabled")),
        write_error=failed[0] if failed else None,
        clients=int(info.get("connected_clients", 0)),
        max_clients=int(info.get("maxclients", 0)),
        queues=Queues(waiting, in_hands),
    )
