"""Tells from an error of httpx, requests, urllib3 or Python's own clients whether a request left, or was refused.

What is not certain is neither: then the effect is unknown and is looked up. No client is imported: an error of one
that nobody has imported cannot have been raised.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from types import FrameType

__all__ = ["not_sent", "rejected"]

# Statuses that do not say "no" for good: timeout, conflict (often: with this very request), too early, too many.
UNDECIDED = frozenset({408, 409, 425, 429})
# A redirect that sends the same request on; any other may follow a request that was executed.
SENT_ON = frozenset({307, 308})

# Raised before the first byte of a request. Not among them: requests' SSL errors, which may come in the middle.
NEVER_LEFT = {
    "builtins": ("ConnectionRefusedError",),
    "socket": ("gaierror",),
    "httpx": ("ConnectError", "ConnectTimeout", "PoolTimeout", "UnsupportedProtocol", "InvalidURL"),
    "requests.exceptions": ("ConnectTimeout", "MissingSchema", "InvalidSchema", "InvalidURL"),
    "urllib3.exceptions": ("NewConnectionError", "ConnectTimeoutError", "EmptyPoolError"),
}
# What wraps another error and adds nothing to it. A ProxyError is not among them, so that nothing in it is a proof.
WRAPPERS = {
    "requests.exceptions": ("RequestException",),
    "urllib3.exceptions": ("MaxRetryError", "ProtocolError"),
    "urllib.error": ("URLError",),
}
STATUS_ERRORS = {"httpx": ("HTTPStatusError",), "requests.exceptions": ("HTTPError",), "urllib.error": ("HTTPError",)}


def not_sent(error: BaseException) -> bool:
    """Tell whether the request certainly never left.

    So it is when the connection was refused, the name not found, the URL not usable, or no connection made or free in
    time; not when it was reset or the answer did not come. One request is judged, the last: an effect that sends two,
    or an SDK that tries again by itself, hides the one before. Redirects, urllib3's retries and logins are seen.
    """
    return _never_left(error) and not any(_followed_another(one) for one in _unwrapped(error))


def rejected(error: BaseException) -> bool:
    """Tell whether the other side has refused the request for good: a 4xx, but not 408, 409, 425 or 429."""
    if not _is(error, STATUS_ERRORS):
        return False
    answer = getattr(error, "response", None)
    status = getattr(error, "code", None) if answer is None else answer.status_code
    earlier = [one.status_code for one in getattr(answer, "history", ())]
    if not all(one in SENT_ON or _refuses(one) for one in earlier) or _followed_another(error):
        return False
    return _refuses(status)


def _never_left(error: BaseException) -> bool:
    return any(_is(one, NEVER_LEFT) for one in _unwrapped(error))


def _refuses(status: object) -> bool:
    return isinstance(status, int) and 400 <= status < 500 and status not in UNDECIDED


def _unwrapped(error: BaseException) -> Iterator[BaseException]:
    """Give the error and what it wraps, as far as it is one of the wrappers that we know."""
    one: object = error
    for _ in range(5):  # requests, MaxRetryError, ProtocolError, OSError; and no circle
        if not isinstance(one, BaseException):
            return
        yield one
        if not _is(one, WRAPPERS):
            return
        inside = (getattr(one, "reason", None), *one.args)
        one = next((each for each in inside if isinstance(each, BaseException)), None)


def _followed_another(error: BaseException) -> bool:
    """Tell whether a request was sent before the one that failed: only the frames that it came through know."""
    return any(_knows_another(frame) for frame in _frames(error))


def _knows_another(frame: FrameType) -> bool:
    name = frame.f_code.co_name
    match frame.f_globals.get("__name__"):
        case "httpx._client" if name == "_send_handling_redirects":
            return bool(frame.f_locals.get("history")) or "response" in frame.f_locals
        case "urllib3.connectionpool" if name == "urlopen":
            history = getattr(frame.f_locals.get("retries"), "history", ())
            return not all(one.error is not None and _never_left(one.error) for one in history)
        case "requests.sessions":
            return name == "resolve_redirects"
        case "requests.hooks":
            return name == "dispatch_hook"
        case "urllib.request":
            return name.startswith("http_error_") and name != "http_error_default"
        case _:
            return False


def _frames(error: BaseException) -> Iterator[FrameType]:
    trace = error.__traceback__
    while trace is not None:
        yield trace.tb_frame
        trace = trace.tb_next


def _is(error: BaseException, kinds: Mapping[str, tuple[str, ...]]) -> bool:
    for module, names in kinds.items():
        client = sys.modules.get(module)
        if client is not None and isinstance(error, tuple(getattr(client, name, ()) for name in names)):
            return True
    return False
