"""Effects: the columns that the side-effect ledger needs, and the protocol's functions as they are now."""

from importlib.resources import files

from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

# What the protocol does, each file once; `core` is revision 0001's.
PARTS = (
    *(
        "clock",
        "runs",
        "effects",
        "enqueue",
        "claim",
        "commit",
        "insert",
        "settle",
        "compensate",
        "waits",
        "decide",
        "nodes",
    ),
    *("dispatch", "control", "scan", "once"),
)
# Functions whose arguments or answers have changed cannot be replaced; the others keep what they were granted to.
CHANGED = ("claim_v1", "commit_v1", "retry_v1", "register_v1")

DROP = """
DO $$ DECLARE f record; BEGIN
    FOR f IN SELECT oid::regprocedure AS name FROM pg_proc
              WHERE pronamespace = 'safepoint'::regnamespace AND proname IN ({names}) LOOP
        EXECUTE 'DROP FUNCTION ' || f.name;
    END LOOP;
END $$
"""


def upgrade() -> None:
    """Add the columns, replace the functions, and take them away from PUBLIC (P42)."""
    # The driver itself: without parameters it sends several statements at once and leaves % alone.
    driver = op.get_bind().connection.driver_connection
    assert driver is not None  # a migration always has a connection
    # Functions may name functions of a later part; bodies are checked when they run.
    driver.execute("SET LOCAL check_function_bodies = off")
    driver.execute(DROP.format(names=", ".join(f"'{name}'" for name in CHANGED)))
    for part in PARTS:
        text = files("safepoint.ledger").joinpath(f"{part}.sql").read_text(encoding="utf-8")
        driver.execute(text.replace("CREATE FUNCTION", "CREATE OR REPLACE FUNCTION"))
    driver.execute(
        files(__package__ or "safepoint.ledger.migrations.versions").joinpath("0002_effects.sql").read_text()
    )
    driver.execute("REVOKE ALL ON ALL FUNCTIONS IN SCHEMA safepoint FROM PUBLIC")


def downgrade() -> None:
    """There is no way back: what an effect has come to must not be forgotten."""
    raise NotImplementedError("restore a backup instead")
