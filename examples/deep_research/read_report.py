"""Prints the report of a run: `python examples/deep_research/read_report.py RUN`."""

from __future__ import annotations

import sys

from research_agent import Report
from safepoint import Client, Run


def main(run_id: str) -> None:
    """Wait for the run's end and print its report."""
    with Client() as client:
        run: Run[Report] = client.run(run_id)  # decoded by the type of the flow, which stands in the imported module
        print(run.result().text.read().decode())


if __name__ == "__main__":
    main(sys.argv[1])
