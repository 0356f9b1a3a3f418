"""Brings requests into the ledger, on connections of ours or in the app's own transaction, and names the runs."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

from ..ledger import enqueue as accepting
from ..ledger.borrowed import Borrowed, borrow
from ..ledger.connect import Connection
from ..ledger.enqueue import Answer, Request, Verdict
from ..ledger.errors import UnknownFlow, WrongDatabase
from .link import Link
from .request import unknown_flow

__all__ = ["Intake"]


class Intake:
    """Accepts requests; answers with the ids of the runs that stand, in the requests' order."""

    def __init__(self, link: Link) -> None:
        self._link = link

    def accept(self, made: Sequence[Request], connection: object = None) -> list[str]:
        """Accept them all or none; with `connection`, in the transaction that is open there."""
        made = self._sealed(made)
        try:
            if connection is None:
                return self._link.ask(lambda own: _accept(own, made))
            return self._on(borrow(connection, expected=self._link.place), made)
        except Exception as error:  # goes to the caller; a refusal that was raised in SQL under its own name
            explained = self._explained(error)
            if explained is error:
                raise
            raise explained from error

    async def aaccept(self, made: Sequence[Request], connection: object = None) -> list[str]:
        """Do what `accept` does; what blocks does so in a thread, but for a blocking connection of the app's own."""
        if connection is None:
            return await asyncio.to_thread(self.accept, made)
        borrowed = borrow(connection, expected=self._link.place)
        if not borrowed.is_async:
            return self.accept(made, connection)
        if self._link.seal.is_configured:
            made = await asyncio.to_thread(self._sealed, made)
        try:
            return await self._aon(borrowed, made)
        except Exception as error:  # as above
            explained = await asyncio.to_thread(self._explained, error)
            if explained is error:
                raise
            raise explained from error

    def _sealed(self, made: Sequence[Request]) -> Sequence[Request]:
        seal = self._link.seal
        return [one.sealed(seal) for one in made] if seal.is_configured else made

    def _on(self, borrowed: Borrowed, made: Sequence[Request]) -> list[str]:
        ledger, place, accepted = self._link.identity(), self._link.place, _Accepted()
        for batch in _in_lock_order(made):
            answers = accepting.answers(borrowed.ask(accepting.parameters(batch, ledger=ledger), expected=place))
            if answers[0].verdict is Verdict.ELSEWHERE:
                ledger = self._ours_after_all(answers[0], borrowed)
                answers = accepting.answers(borrowed.ask(accepting.parameters(batch, ledger=ledger), expected=place))
            accepted.add(batch, answers)
        return accepted.of(made)

    async def _aon(self, borrowed: Borrowed, made: Sequence[Request]) -> list[str]:
        ledger, place, accepted = await asyncio.to_thread(self._link.identity), self._link.place, _Accepted()
        for batch in _in_lock_order(made):
            answers = accepting.answers(await borrowed.aask(accepting.parameters(batch, ledger=ledger), expected=place))
            if answers[0].verdict is Verdict.ELSEWHERE:
                ledger = await asyncio.to_thread(self._ours_after_all, answers[0], borrowed)
                again = accepting.parameters(batch, ledger=ledger)
                answers = accepting.answers(await borrowed.aask(again, expected=place))
            accepted.add(batch, answers)
        return accepted.of(made)

    def _ours_after_all(self, answer: Answer, borrowed: Borrowed) -> str:
        """Return the identity on the app's connection if it is ours: a restart or a restore gives a new one (P8)."""
        ours = self._link.identity(afresh=True)
        if ours is None or ours != answer.detail:
            found = f"{borrowed.where}, which holds another ledger ({answer.detail})"
            raise WrongDatabase(found=found, expected=f"{self._link.place} ({ours or 'which does not answer'})")
        return ours

    def _explained(self, error: Exception) -> Exception:
        found = accepting.raised_refusal(error) or error
        if not isinstance(found, UnknownFlow):
            return found
        served = self._link.ask(_served_flows) if self._link.identity() is not None else []
        return unknown_flow(found.name, served)


class _Accepted:
    """The answers so far, by the requests' ids."""

    def __init__(self) -> None:
        self._runs: dict[str, str] = {}

    def add(self, batch: Sequence[Request], answers: Sequence[Answer]) -> None:
        """Take the answers to a batch, or raise what one of them means."""
        for answer in answers:
            if answer.verdict is not Verdict.ACCEPTED and (error := accepting.refusal(answer)) is not None:
                raise error
            self._runs[batch[answer.n].run_id] = str(answer.run_id)

    def of(self, made: Sequence[Request]) -> list[str]:
        return [self._runs[request.run_id] for request in made]


def _accept(connection: Connection, made: Sequence[Request]) -> list[str]:
    """Accept requests on a connection of ours: one statement, or several in a transaction."""
    accepted, batches = _Accepted(), _in_lock_order(made)
    if len(batches) == 1:
        accepted.add(batches[0], accepting.enqueue(connection, batches[0]))
        return accepted.of(made)
    with connection.transaction():
        for batch in batches:
            accepted.add(batch, accepting.enqueue(connection, batch))
    return accepted.of(made)


def _in_lock_order(made: Sequence[Request]) -> list[Sequence[Request]]:
    """Split requests into statements that take their keys in one order over all clients (P2)."""
    if len(made) > 1 and any("key" in request.terms for request in made):
        made = sorted(made, key=_key)
    return list(accepting.batches(made)) if made else []


def _key(request: Request) -> tuple[bytes, bytes]:
    terms: Mapping[str, object] = request.terms
    return str(terms.get("tenant", "")).encode(), str(terms.get("key") or "").encode()


def _served_flows(connection: Connection) -> list[str]:
    return [
        str(row[0]) for row in connection.execute("SELECT DISTINCT name FROM safepoint.flows ORDER BY name LIMIT 200")
    ]
