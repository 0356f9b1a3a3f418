"""Makes the model's own modules importable for its tests; `tests/` is no package."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
