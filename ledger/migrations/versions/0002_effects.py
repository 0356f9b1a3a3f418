"""Effects: the columns that the side-effect ledger needs. The functions are put in place by the newest revision."""

from alembic import op
from safepoint.ledger import functions

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

# What is called here, to name the effects that are open.
PARTS = ("clock", "runs", "effects")


def upgrade() -> None:
    """Add the columns, and make rows for the effects that are open."""
    driver = functions.driver_of(op.get_bind())
    functions.replace(driver, PARTS)
    functions.revise(driver, "0002_effects")


def downgrade() -> None:
    """There is no way back: what an effect has come to must not be forgotten."""
    raise NotImplementedError("restore a backup instead")
