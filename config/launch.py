"""A program, not a module: becomes another user, leaves its parent behind, and turns into a server.

Run as `python -I -S launch.py JSON`. It is a process of its own because changing identity and forking are safe only
in a process with one thread, which the caller's often is not. It imports nothing that costs start-up time.
"""

# The rule it keeps: no right that the server does not need survives the exec.

import json
import os
import sys

_PR_SET_KEEPCAPS = 8
_PR_CAP_AMBIENT = 47
_PR_CAP_AMBIENT_RAISE = 2
_CLONE_NEWUSER = 0x10000000
_CAPABILITY_VERSION_3 = 0x20080522


def main() -> None:
    """Do what the JSON says: {uid, gid, capabilities, namespace, home, reads, command, log, detach}."""
    plan = json.loads(sys.argv[1])
    log = os.open(plan["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600) if plan["log"] else None
    if plan["detach"]:
        _detach()
    _become(plan)
    os.chdir(plan["home"])  # also the proof that the new identity reaches it
    for path in plan["reads"]:
        os.close(os.open(path, os.O_RDONLY))
    if log is not None:
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(log, 1)
        os.dup2(log, 2)
    os.umask(0o077)
    os.execv(plan["command"][0], plan["command"])


def _detach() -> None:
    """Go on as a grandchild: nobody's child to wait for, and out of reach of the terminal's Ctrl-C."""
    pid = os.fork()
    if pid:
        sys.stdout.write(f"{pid}\n")
        sys.stdout.flush()
        os._exit(0)
    os.setsid()


def _become(plan: dict) -> None:  # type: ignore[type-arg]  # what JSON gives
    if plan["namespace"]:
        _enter_namespace(plan["uid"], plan["gid"])
    elif plan["uid"] is not None:
        if plan["capabilities"]:
            _call("prctl", _PR_SET_KEEPCAPS, 1, 0, 0, 0)
        os.setgroups([])
        os.setresgid(plan["gid"], plan["gid"], plan["gid"])
        os.setresuid(plan["uid"], plan["uid"], plan["uid"])
        if plan["capabilities"]:
            _keep_only(plan["capabilities"])


def _keep_only(capabilities: list) -> None:  # type: ignore[type-arg]  # what JSON gives
    import ctypes  # noqa: PLC0415  # half of this program's start-up, and seldom needed

    mask = sum(1 << number for number in capabilities)
    header = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION_3, 0)
    # Effective, permitted, inheritable of the first 32 capabilities, then of the rest.
    sets = (ctypes.c_uint32 * 6)(mask, mask, mask, 0, 0, 0)
    _call("capset", ctypes.byref(header), ctypes.byref(sets))
    for number in capabilities:
        _call("prctl", _PR_CAP_AMBIENT, _PR_CAP_AMBIENT_RAISE, number, 0, 0)


def _enter_namespace(uid: int, gid: int) -> None:
    """Stay who we are, but be called `uid` in a user namespace of our own: PostgreSQL refuses the number 0."""
    outside_uid, outside_gid = os.geteuid(), os.getegid()
    _call("unshare", _CLONE_NEWUSER)
    for name, line in (
        ("setgroups", "deny"),
        ("uid_map", f"{uid} {outside_uid} 1"),
        ("gid_map", f"{gid} {outside_gid} 1"),
    ):
        with open(f"/proc/self/{name}", "w") as file:  # noqa: PTH123  # pathlib would double this program's start-up
            file.write(line)


def _call(name: str, *arguments: object) -> None:
    import ctypes  # noqa: PLC0415  # as above

    if getattr(ctypes.CDLL(None, use_errno=True), name)(*arguments) != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))


if __name__ == "__main__":
    main()
