"""Uploads a document, makes a run for it, waits for its end and prints the report.

    PYTHONPATH=examples/documents python examples/documents/submit.py examples/documents/input/invoices.txt

The run's key is the document's digest: the same document again gives the same run, and nothing is read twice.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from document_pipeline import documents
from safepoint import Budget, Client


def main() -> None:
    """Submit one document."""
    parser = argparse.ArgumentParser(description="Turn a document of invoices into a table.")
    parser.add_argument("file", type=Path)
    parser.add_argument("--tenant", default="default")
    options = parser.parse_args()
    with Client() as client:
        document = client.artifact(options.file, tenant=options.tenant)
        run = documents(document).enqueue(
            tenant=options.tenant,
            key=f"document-{document.sha256}",
            deadline=3600,
            budget=Budget(tokens=200_000, usd=1),
        )
        print(f"run {run.id}", file=sys.stderr)
        result = run.result(timeout=3600)
        print(result.report.read().decode(), end="")
        print(f"{result.invoices} invoices, {result.total / 100:.2f} in all", file=sys.stderr)
        print(f"for a person: pages {', '.join(map(str, result.for_a_person)) or 'none'}", file=sys.stderr)


if __name__ == "__main__":
    main()
