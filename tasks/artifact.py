"""Artifacts: values too large for a row, named by their content; a flow passes them on, steps read them."""

from __future__ import annotations

import hashlib
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, BinaryIO, Protocol

from ..ledger.errors import ArtifactCorrupt, NotInStep
from .branch import branch_or_none
from .scoped import Scoped

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pydantic import GetCoreSchemaHandler
    from pydantic_core import CoreSchema

__all__ = ["Artifact", "ArtifactSource", "reading_from"]


class ArtifactSource(Protocol):
    """Opens what is stored, for one tenant."""

    def open(self, sha256: str, /) -> BinaryIO:
        """Open the bytes with that digest."""
        ...


_source: ContextVar[ArtifactSource | None] = ContextVar("safepoint_artifacts", default=None)


@dataclass(frozen=True, slots=True)
class Artifact:
    """A stored value: its digest, its size, and how it is to be read."""

    sha256: str
    size: int
    media_type: str = "application/octet-stream"
    name: str | None = None
    _from: ArtifactSource | None = field(default_factory=_source.get, init=False, repr=False, compare=False)

    def open(self) -> BinaryIO:
        """Open it for reading; in a step, or where it came from a client."""
        source = self._from or _source.get()
        if branch_or_none() is not None or source is None:
            raise NotInStep(what=f"reading the artifact {self.name or self.sha256[:12]}")
        return source.open(self.sha256)

    def read(self) -> bytes:
        """Give its bytes, checked against the digest."""
        with self.open() as stream:
            data = stream.read()
        if hashlib.sha256(data).hexdigest() != self.sha256:
            raise ArtifactCorrupt(sha256=self.sha256, size=len(data))
        return data

    @classmethod
    def __get_pydantic_core_schema__(
        cls,
        source: Any,
        handler: GetCoreSchemaHandler,
    ) -> CoreSchema:
        """Store the reference, never where it is read from."""
        from pydantic_core import core_schema as schemas  # noqa: PLC0415  # only who encodes pays for pydantic's import

        fields = schemas.typed_dict_schema(
            {
                "sha256": schemas.typed_dict_field(schemas.str_schema(pattern="^[0-9a-f]{64}$")),
                "size": schemas.typed_dict_field(schemas.int_schema(ge=0)),
                "media_type": schemas.typed_dict_field(schemas.str_schema(), required=False),
                "name": schemas.typed_dict_field(schemas.nullable_schema(schemas.str_schema()), required=False),
            }
        )
        stored = schemas.no_info_after_validator_function(lambda given: cls(**given), fields)
        return schemas.json_or_python_schema(
            json_schema=stored,
            python_schema=schemas.union_schema([schemas.is_instance_schema(cls), stored]),
            serialization=schemas.plain_serializer_function_ser_schema(_reference),
        )


def _reference(artifact: Artifact) -> Mapping[str, object]:
    return {
        "sha256": artifact.sha256,
        "size": artifact.size,
        "media_type": artifact.media_type,
        "name": artifact.name,
    }


def reading_from(source: ArtifactSource) -> Scoped[ArtifactSource | None]:
    """Let artifacts that are decoded or read inside the block be read from there."""
    return Scoped(_source, source)
