"""What errors of real HTTP clients prove, against real servers: refused, deaf, resetting, hanging, answering."""

from __future__ import annotations

import asyncio
import http.client
import socket
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from urllib.parse import urlsplit

import httpx
import pytest
import requests
import requests.adapters
import requests.auth
import urllib3
from other_side import OtherSide, closed_port, deaf, other_side
from safepoint import effect
from safepoint.http import not_sent, rejected

Send = Callable[[str], object]
WAIT = 0.2  # seconds that a client waits for what never comes


def by_httpx(url: str) -> object:
    with httpx.Client(timeout=WAIT, follow_redirects=True, trust_env=False, verify=False) as client:
        return client.post(url, content=b"x").raise_for_status()


def by_async_httpx(url: str) -> object:
    async def send() -> object:
        async with httpx.AsyncClient(timeout=WAIT, follow_redirects=True, trust_env=False, verify=False) as client:
            return (await client.post(url, content=b"x")).raise_for_status()

    return asyncio.run(send())


def by_requests(url: str) -> object:
    with requests.Session() as session:
        session.trust_env = False
        session.post(url, data=b"x", timeout=WAIT).raise_for_status()
        return None


def by_urllib3(url: str) -> object:
    with urllib3.PoolManager(timeout=WAIT, retries=False) as pool:
        return pool.request("POST", url, body=b"x")


def by_urllib(url: str) -> object:
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(url, data=b"x", timeout=WAIT) as answer:
            return answer.read()
    except urllib.error.HTTPError as error:
        error.close()  # it holds the connection
        raise


def by_http_client(url: str) -> object:
    parts = urlsplit(url)
    connection = http.client.HTTPConnection(parts.netloc, timeout=WAIT)
    try:
        connection.request("POST", parts.path, b"x")
        return connection.getresponse().read()
    finally:
        connection.close()


LIBRARIES = [by_httpx, by_async_httpx, by_requests]
CLIENTS = [*LIBRARIES, by_urllib3, by_urllib, by_http_client]


@pytest.fixture
def server() -> Iterator[OtherSide]:
    with other_side() as running:
        yield running


def error_of(send: Send, url: str) -> BaseException:
    with pytest.raises(Exception) as caught:  # noqa: PT011  # whatever the library raises is what is judged
        send(url)
    return caught.value


# --- not sent -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("send", CLIENTS)
def test_a_refused_connection_sent_nothing(send: Send) -> None:
    assert not_sent(error_of(send, f"http://127.0.0.1:{closed_port()}/200"))


@pytest.mark.parametrize("send", CLIENTS)
def test_a_name_that_is_not_found_sent_nothing(send: Send, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_such_name(*args: object, **kwargs: object) -> object:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", no_such_name)

    assert not_sent(error_of(send, "http://tickets.invalid/200"))


@pytest.mark.parametrize("send", [*LIBRARIES, by_urllib3])
def test_a_connection_that_was_not_made_in_time_sent_nothing(send: Send) -> None:
    with deaf() as url:
        assert not_sent(error_of(send, f"{url}/200"))


@pytest.mark.parametrize("send", [by_urllib, by_http_client])
def test_pythons_own_clients_do_not_tell_a_slow_connection_from_a_slow_answer(send: Send, server: OtherSide) -> None:
    with deaf() as url:
        assert not not_sent(error_of(send, f"{url}/200"))
    assert not not_sent(error_of(send, f"{server.url}/hang"))


def test_a_pool_without_a_free_connection_sent_nothing(server: OtherSide) -> None:
    limits, timeout = httpx.Limits(max_connections=1), httpx.Timeout(5, pool=WAIT)
    with httpx.Client(limits=limits, timeout=timeout, trust_env=False) as client:
        with client.stream("POST", f"{server.url}/200"):
            error = error_of(client.post, f"{server.url}/200")

    assert isinstance(error, httpx.PoolTimeout)
    assert not_sent(error)


def test_urllib3s_pool_without_a_free_connection_sent_nothing(server: OtherSide) -> None:
    parts = urlsplit(server.url)
    with urllib3.HTTPConnectionPool(parts.hostname or "", parts.port, maxsize=1, block=True) as pool:
        held = pool.urlopen("POST", "/200", preload_content=False, release_conn=False)
        error = error_of(lambda url: pool.urlopen("POST", url, pool_timeout=1), "/200")
        held.close()

    assert isinstance(error, urllib3.exceptions.EmptyPoolError)
    assert not_sent(error)


@pytest.mark.parametrize("send", LIBRARIES)
@pytest.mark.parametrize("url", ["tickets/42", "gopher://127.0.0.1/", "http://"])
def test_a_url_that_cannot_be_used_sent_nothing(send: Send, url: str) -> None:
    assert not_sent(error_of(send, url))


@pytest.mark.parametrize("send", CLIENTS)
@pytest.mark.parametrize("path", ["hang", "reset"])
def test_a_request_that_may_have_arrived_is_never_called_not_sent(send: Send, server: OtherSide, path: str) -> None:
    error = error_of(send, f"{server.url}/{path}")

    assert server.received == [f"POST /{path}"]
    assert not not_sent(error)
    assert not rejected(error)


@pytest.mark.parametrize("send", [*LIBRARIES, by_urllib])
@pytest.mark.parametrize("status", [302, 303])
def test_a_refused_redirect_follows_a_request_that_was_sent(send: Send, server: OtherSide, status: int) -> None:
    error = error_of(send, f"{server.url}/redirect/{status}/{closed_port()}")

    assert len(server.received) == 1
    assert not not_sent(error)


@pytest.mark.parametrize("retries", [0, 2])
def test_each_of_urllib3s_attempts_was_refused(retries: int) -> None:
    def send(url: str) -> object:
        with requests.Session() as session:
            session.mount("http://", requests.adapters.HTTPAdapter(max_retries=retries))
            return session.post(url, timeout=WAIT)

    assert not_sent(error_of(send, f"http://127.0.0.1:{closed_port()}/200"))


@pytest.mark.parametrize("path", ["503", "reset"])
def test_a_refused_retry_hides_an_attempt_that_was_sent(server: OtherSide, path: str) -> None:
    policy = urllib3.Retry(3, status_forcelist=[503], allowed_methods=None, backoff_factor=0)

    def send(url: str) -> object:
        with requests.Session() as session:
            session.trust_env = False
            session.mount("http://", requests.adapters.HTTPAdapter(max_retries=policy))
            return session.post(url, timeout=WAIT)

    server.vanishes = True
    error = error_of(send, f"{server.url}/{path}")

    assert "refused" in str(error)
    assert server.received == [f"POST /{path}"]
    assert not not_sent(error)


def test_a_refused_login_follows_a_request_that_was_sent() -> None:
    def send_by_requests(url: str) -> object:
        with requests.Session() as session:
            session.trust_env = False
            return session.post(url, auth=requests.auth.HTTPDigestAuth("u", "p"), timeout=WAIT)

    def send_by_httpx(url: str) -> object:
        with httpx.Client(auth=httpx.DigestAuth("u", "p"), timeout=WAIT, trust_env=False) as client:
            return client.post(url)

    for send in (send_by_requests, send_by_httpx):
        with other_side() as another:
            another.vanishes = True
            error = error_of(send, f"{another.url}/401")

        assert another.received == ["POST /401"]
        assert not not_sent(error)


@pytest.mark.parametrize("path", ["https://127.0.0.1:1/", "http://127.0.0.1:1/"])
def test_what_went_wrong_at_a_proxy_proves_nothing(path: str) -> None:
    proxy = f"http://127.0.0.1:{closed_port()}"

    def send(url: str) -> object:
        return requests.post(url, proxies={"http": proxy, "https": proxy}, timeout=WAIT)

    error = error_of(send, path)

    assert isinstance(error, requests.exceptions.ProxyError)
    assert not not_sent(error)


def test_a_tunnel_that_a_proxy_refuses_proves_nothing(server: OtherSide) -> None:
    with httpx.Client(proxy=server.url, timeout=WAIT, trust_env=False) as client:
        error = error_of(client.post, "https://127.0.0.1:1/")

    assert isinstance(error, httpx.ProxyError)
    assert not not_sent(error)


@pytest.mark.parametrize(
    "error",
    [
        TimeoutError("timed out"),
        ConnectionResetError(),
        BrokenPipeError(),
        OSError("Tunnel connection failed: 403 Forbidden"),
        RuntimeError("connection refused"),
        requests.ConnectionError(),
        requests.Timeout(),
        urllib.error.URLError(ConnectionResetError()),
        urllib.error.URLError("connection refused"),
    ],
    ids=repr,
)
def test_what_only_sounds_like_it_proves_nothing(error: BaseException) -> None:
    assert not not_sent(error)
    assert not rejected(error)


def test_an_sdks_own_error_proves_nothing_about_what_it_hides() -> None:
    def by_sdk(url: str) -> object:
        try:
            return by_httpx(url)
        except httpx.ConnectError as refused:
            raise RuntimeError("API connection error") from refused

    error = error_of(by_sdk, f"http://127.0.0.1:{closed_port()}/200")

    assert not not_sent(error)
    assert error.__cause__ is not None
    assert not_sent(error.__cause__)


# --- rejected -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("send", [*LIBRARIES, by_urllib])
@pytest.mark.parametrize("status", [400, 401, 403, 404, 422, 451])
def test_a_4xx_is_a_refusal(send: Send, server: OtherSide, status: int) -> None:
    error = error_of(send, f"{server.url}/{status}")

    assert rejected(error)
    assert not not_sent(error)


@pytest.mark.parametrize("send", [*LIBRARIES, by_urllib])
@pytest.mark.parametrize("status", [408, 409, 425, 429, 500, 502, 503, 504])
def test_what_may_have_been_done_is_no_refusal(send: Send, server: OtherSide, status: int) -> None:
    error = error_of(send, f"{server.url}/{status}")

    assert not rejected(error)
    assert not not_sent(error)


@pytest.mark.parametrize("send", [*LIBRARIES, by_urllib])
@pytest.mark.parametrize("status", [302, 303])
def test_a_4xx_after_a_redirect_is_the_refusal_of_another_request(send: Send, server: OtherSide, status: int) -> None:
    with other_side() as another:
        error = error_of(send, f"{server.url}/redirect/{status}/{urlsplit(another.url).port}")

    assert another.received == ["GET /404"]
    assert not rejected(error)


@pytest.mark.parametrize("send", LIBRARIES)
@pytest.mark.parametrize("status", [307, 308])
def test_a_redirect_that_keeps_the_request_leads_to_its_refusal(send: Send, server: OtherSide, status: int) -> None:
    with other_side() as another:
        error = error_of(send, f"{server.url}/redirect/{status}/{urlsplit(another.url).port}")

    assert another.received == ["POST /404"]
    assert rejected(error)


@pytest.mark.parametrize("error", [requests.HTTPError(), requests.HTTPError("404 Client Error"), ValueError(404)])
def test_an_error_without_an_answer_is_no_refusal(error: BaseException) -> None:
    assert not rejected(error)


# --- as options of an effect ----------------------------------------------------------------------------------------


def test_an_effect_takes_both() -> None:
    @effect(not_sent=not_sent, rejected=rejected)
    def order() -> None:
        by_httpx("http://127.0.0.1:1/")

    error = error_of(by_httpx, f"http://127.0.0.1:{closed_port()}/200")

    assert order.safety.is_not_sent(error)
    assert not order.safety.is_rejected(error)
