"""A document pipeline: splits a document, reads its pages in parallel, merges what they say, and writes a report.

    SAFEPOINT_FLOWS=document_pipeline PYTHONPATH=examples/documents safepoint up
    PYTHONPATH=examples/documents python examples/documents/submit.py examples/documents/input/invoices.txt

The document is uploaded before the run; document, pages and report are artifacts, stored once under their content's
digest, and what goes from step to step is a reference. A page that cannot be read is left for a person, by number.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TypeGuard

import page_model as model
from page_model import Invoice
from safepoint import Artifact, Budget, Permanent, current, flow, gather, step
from safepoint.errors import StepFailed
from tenacity import retry_if_exception_type, stop_after_attempt, wait_random_exponential

PAGE_BREAK = "\f"
MOST_PAGES = 2_000  # an upload by mistake must not cost a fortune
AT_ONCE = 8


@dataclass(frozen=True)
class Page:
    """One page: its number, and its text as an artifact."""

    number: int
    text: Artifact


@dataclass(frozen=True)
class Read:
    """What stands on a page; `doubt` says why a person should look at it."""

    page: int
    invoice: Invoice
    doubt: str | None = None


@dataclass(frozen=True)
class Ledger:
    """What all pages come to."""

    invoices: list[Read]
    duplicates: list[int]
    totals: dict[str, int]


@dataclass(frozen=True)
class Result:
    """What the run comes to; amounts are cents."""

    report: Artifact
    invoices: int
    total: int
    for_a_person: list[int]


@step(timeout=120)
def split_pages(document: Artifact) -> list[Page]:
    """Cut the document into its pages."""
    texts = document.read().decode().split(PAGE_BREAK)
    pages = [(number, text) for number, text in enumerate(texts, 1) if text.strip()]
    if not 0 < len(pages) <= MOST_PAGES:
        raise Permanent(f"{document.name} has {len(pages)} pages; accepted are 1 to {MOST_PAGES}")
    here = current()
    return [Page(number, here.artifact(text, name=f"page-{number}.txt")) for number, text in pages]


@step(
    uses="llm",
    timeout=120,
    reserve=Budget(tokens=400),
    wait=wait_random_exponential(multiplier=0.2, max=30),
    stop=stop_after_attempt(3),
    retry=retry_if_exception_type((model.NonsenseError, ConnectionError, TimeoutError)),
)
def extract_invoice(page: Page) -> Read:
    """Let the model read a page, and add up what it says."""
    answer = model.read_invoice(page.text.read().decode())
    current().spend(tokens=answer.tokens, usd=answer.usd)  # nonsense is paid for as well
    invoice = answer.invoice()
    added = sum(line.cents for line in invoice.lines)
    doubt = None if added == invoice.total else f"the lines add up to {added / 100:.2f}"
    return Read(page.number, invoice, doubt)


@step
def merge_invoices(pages: list[Read]) -> Ledger:
    """Sort the invoices, find those that came twice, and add up the others by supplier."""
    ordered = sorted(pages, key=lambda one: (one.invoice.supplier, one.invoice.number, one.page))
    seen: set[tuple[str, str]] = set()
    duplicates: list[int] = []
    totals: dict[str, int] = {}
    for one in ordered:
        name = (one.invoice.supplier, one.invoice.number)
        if name in seen:
            duplicates.append(one.page)
            continue
        seen.add(name)
        totals[one.invoice.supplier] = totals.get(one.invoice.supplier, 0) + one.invoice.total
    return Ledger(ordered, duplicates, totals)


@step
def write_table(document: Artifact, ledger: Ledger, unread: dict[int, str]) -> Artifact:
    """Write the report as a table."""
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    table.writerow(["page", "supplier", "invoice", "date", "total", "remark"])
    for one in ledger.invoices:
        remark = "came twice" if one.page in ledger.duplicates else one.doubt or ""
        invoice = one.invoice
        table.writerow([one.page, invoice.supplier, invoice.number, invoice.date, f"{invoice.total / 100:.2f}", remark])
    for page, why in unread.items():
        table.writerow([page, "", "", "", "", f"not read: {why}"])
    for supplier, total in ledger.totals.items():
        table.writerow(["", supplier, "", "", f"{total / 100:.2f}", "total"])
    return current().artifact(text.getvalue(), name=f"{document.name or 'document'}.csv", media_type="text/csv")


@flow(version="1", uses_versions={"model_policy": model.NAME})
async def documents(document: Artifact) -> Result:
    """Turn a document of invoices into a table."""
    pages = await split_pages(document)
    current().note(f"{document.name}: {len(pages)} pages, {document.size:,} bytes", percent=10)
    read = await gather(*[extract_invoice(page) for page in pages], limit=AT_ONCE, return_exceptions=True)
    unread = {page.number: error.message for page, error in zip(pages, read, strict=True) if is_left_out(error)}
    current().note(f"{len(pages) - len(unread)} pages read, {len(unread)} left for a person", percent=80)
    ledger = await merge_invoices([one for one in read if isinstance(one, Read)])
    table = await write_table(document, ledger, unread)
    return Result(
        report=table,
        invoices=len(ledger.invoices) - len(ledger.duplicates),
        total=sum(ledger.totals.values()),
        for_a_person=for_a_person(ledger, unread),
    )


def for_a_person(ledger: Ledger, unread: Iterable[int]) -> list[int]:
    """Give the pages that somebody should look at."""
    return sorted({*unread, *ledger.duplicates, *(one.page for one in ledger.invoices if one.doubt)})


def is_left_out(result: object) -> TypeGuard[StepFailed]:
    """Tell whether a page could not be read; an error that is not about the page ends the run."""
    if isinstance(result, Exception) and not isinstance(result, StepFailed):
        raise result
    return isinstance(result, StepFailed)
