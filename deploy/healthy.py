"""Health check of a worker's container: the ledger has heard from a node of this host lately.

Being alive is not enough: a worker that has lost its connections is alive and does nothing.
"""

import json
import socket
import subprocess
import sys
from datetime import UTC, datetime, timedelta

SILENCE = timedelta(seconds=30)  # twice the lease


def main() -> int:
    """Return the exit code that Docker takes for healthy or not."""
    listed = subprocess.run(["safepoint", "nodes", "--json"], capture_output=True, text=True, check=True)
    seen = [
        datetime.fromisoformat(node["last_seen"])
        for node in json.loads(listed.stdout)
        if node["host"] == socket.gethostname()
    ]
    return 0 if seen and datetime.now(UTC) - max(seen) < SILENCE else 1


if __name__ == "__main__":
    sys.exit(main())
