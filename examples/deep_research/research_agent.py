"""A research agent: plans searches, runs them in parallel, reranks and reads what they find, and writes a report.

    SAFEPOINT_FLOWS=research_agent PYTHONPATH=examples/deep_research safepoint up
    safepoint enqueue research --input '{"question": "Are heat pumps any good in old houses?"}' --tokens 50000

A search that is busy is tried again; a page that is gone is left out and named; what the first round leaves open is
asked in a second one. Pages and report are artifacts: rows of the ledger stay small however long the texts are.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

import library
import research_model as model
from library import Hit
from safepoint import Artifact, Budget, Permanent, current, flow, gather, now, step, uuid4
from safepoint.errors import RetryAfter, StepFailed
from tenacity import retry_if_exception_type, stop_after_attempt, wait_random_exponential


@dataclass(frozen=True)
class Finding:
    """What a page says about the question."""

    url: str
    title: str
    quotes: list[str]


@dataclass(frozen=True)
class Report:
    """What the run comes to; the text itself is the artifact."""

    id: str
    as_of: datetime
    text: Artifact
    sources: list[str]
    left_out: list[str]


# --- steps ----------------------------------------------------------------------------------------------------------


@step(uses="llm", timeout=120, reserve=Budget(tokens=500))
def plan_searches(question: str) -> list[str]:
    """Ask the model what to search for."""
    return _paid(model.plan(question))


@step(
    uses="search",
    timeout=30,
    wait=wait_random_exponential(multiplier=0.2, max=30),
    stop=stop_after_attempt(6),
    retry=retry_if_exception_type((library.BusyError, ConnectionError, TimeoutError)),
)
def search_library(query: str) -> list[Hit]:
    """Search; an engine that is busy is asked again, later and later."""
    return library.search(query, limit=5)


@step(uses="llm", timeout=120, reserve=Budget(tokens=500))
def rerank_hits(question: str, hits: list[Hit], keep: int) -> list[Hit]:
    """Let the model choose what is worth reading."""
    order = _paid(model.rank(question, [f"{hit.title}: {hit.snippet}" for hit in hits]))
    return [hits[place] for place in order[:keep]]


@step(uses="web", timeout=60)
def fetch_page(url: str) -> Artifact:
    """Fetch a page; from here on it is what it was when it was read, whatever becomes of the site."""
    try:
        text = library.fetch(url)
    except library.GoneError as error:
        raise Permanent(str(error)) from error  # no retry brings it back
    except library.TooManyError as error:
        raise RetryAfter(error.seconds) from error
    return current().artifact(text, name=f"{url.rpartition('/')[2]}.md", media_type="text/markdown")


@step(uses="llm", timeout=300, reserve=Budget(tokens=1_000))
def read_page(question: str, hit: Hit, page: Artifact) -> Finding:
    """Let the model read a page."""
    quotes = _paid(model.read(question, page.read().decode()))
    current().note(f"{hit.title}: {len(quotes)} passages")
    return Finding(hit.url, hit.title, quotes)


@step(uses="llm", timeout=120, reserve=Budget(tokens=500))
def find_gaps(question: str, findings: list[Finding]) -> list[str]:
    """Ask the model what is still open, as new searches; none if nothing is."""
    return _paid(model.gaps(question, [quote for finding in findings for quote in finding.quotes]))


@step(uses="llm", timeout=600, reserve=Budget(tokens=2_000))
def write_report(question: str, findings: list[Finding], left_out: list[str], as_of: datetime) -> Artifact:
    """Let the model write the report."""
    sources = [(finding.title, finding.url, finding.quotes) for finding in findings]
    text = _paid(model.write(question, sources, left_out, as_of))
    return current().artifact(text, name="report.md", media_type="text/markdown")


def _paid(answer: model.Answer[model.T]) -> model.T:
    current().spend(tokens=answer.tokens, usd=answer.usd)
    return answer.value


# --- the flow -------------------------------------------------------------------------------------------------------


async def study(question: str, hit: Hit) -> Finding:
    """Fetch and read one page; several pages are studied at once."""
    return await read_page(question, hit, await fetch_page(hit.url))


@flow(version="1", uses_versions={"model_policy": "small-for-ranking"})
async def research(question: str, rounds: int = 2, width: int = 4) -> Report:
    """Answer a question from what the library has, at most `width` pages in each round."""
    findings: list[Finding] = []
    left_out: list[str] = []
    seen: set[str] = set()
    queries = await plan_searches(question)
    for n in range(1, rounds + 1):
        current().note(f"round {n}: {len(queries)} searches", percent=5 + 90 * (n - 1) / rounds)
        results = await gather(*[search_library(query) for query in queries], limit=width, return_exceptions=True)
        left_out += [f"{query} ({error})" for query, error in zip(queries, results, strict=True) if failed(error)]
        # A dict keeps the order in which they came; a set would not, and a replay must ask the same of the next step.
        hits = {hit.url: hit for found in results if isinstance(found, list) for hit in found if hit.url not in seen}
        best = await rerank_hits(question, list(hits.values()), width)
        seen |= {hit.url for hit in best}
        studied = await gather(*[study(question, hit) for hit in best], limit=width, return_exceptions=True)
        left_out += [f"{hit.url} ({error})" for hit, error in zip(best, studied, strict=True) if failed(error)]
        findings += [one for one in studied if isinstance(one, Finding) and one.quotes]
        queries = await find_gaps(question, findings)
        if not queries:
            break
    as_of = now()
    text = await write_report(question, findings, left_out, as_of)
    return Report(str(uuid4()), as_of, text, [finding.url for finding in findings], left_out)


def failed(result: object) -> bool:
    """Tell whether a branch of a gather failed in a way that the report can do without; else raise its error."""
    if isinstance(result, Exception) and not isinstance(result, StepFailed):
        raise result  # the budget, the deadline: no report can be written without them
    return isinstance(result, StepFailed)
