"""The controller by its files and messages: what it is told of a dead engine, and how long it is looked for."""

from __future__ import annotations

import json
from pathlib import Path

import ipyparallel as ipp
import pytest
import zmq
from jupyter_client.session import Session

from gpulab.errors import RankError
from gpulab.parallel import _hub
from gpulab.parallel._hub import Controller, connect, unregister


def test_a_controller_hears_of_each_engine_that_is_gone() -> None:
    """Read as a controller reads it, with its key: one signed request an engine, as ipyparallel's nanny sends them."""
    key = b"secret"
    with zmq.Context() as context, context.socket(zmq.ROUTER) as registration:
        port = registration.bind_to_random_port("tcp://127.0.0.1")
        unregister(Controller(f"tcp://127.0.0.1:{port}", key, "hmac-sha256", None), (one for one in (3, 5)))
        session = Session(key=key, signature_scheme="hmac-sha256")
        heard = []
        for _ in range(2):
            assert registration.poll(5000)
            _, message = session.feed_identities(registration.recv_multipart())
            found = session.deserialize(message)
            heard.append((found["msg_type"], found["content"]))
    assert heard == [("unregistration_request", {"id": 3}), ("unregistration_request", {"id": 5})]


def test_nobody_gone_is_no_message() -> None:
    """No socket is opened, not even to an address that cannot be."""
    unregister(Controller("nowhere", b"", "hmac-sha256", None), [])


def test_a_controllers_file_is_read(tmp_path: Path) -> None:
    """Where to register, and the keys as bytes; without CURVE there is no second one."""
    plain = {"interface": "tcp://10.0.0.1", "registration": 4711, "key": "k", "signature_scheme": "hmac-sha256", "curve_serverkey": None}
    (tmp_path / "ipcontroller-engine.json").write_text(json.dumps(plain))
    assert Controller.read(tmp_path) == Controller("tcp://10.0.0.1:4711", b"k", "hmac-sha256", None)
    (tmp_path / "ipcontroller-engine.json").write_text(json.dumps(plain | {"curve_serverkey": "c"}))
    assert Controller.read(tmp_path).server_key == b"c"


class Clock:
    """Seconds that pass only while somebody sleeps or waits."""

    def __init__(self) -> None:
        self.now = 50.0

    def monotonic(self) -> float:
        """Return the seconds so far."""
        return self.now

    def sleep(self, seconds: float) -> None:
        """Let them pass."""
        self.now += seconds


@pytest.mark.parametrize(("half", "left"), [(0, 20.0), (40, 18.0), (390, 1.0)])
def test_a_client_waits_for_what_is_left_of_its_time(monkeypatch: pytest.MonkeyPatch, half: int, left: float) -> None:
    """A file that is written only in part is read again, each 50 ms; the client then has what is left of 20 s, and no less than one."""
    clock, asked = Clock(), []

    def client(file: str, timeout: float) -> str:
        asked.append(timeout)
        if len(asked) <= half:
            raise json.JSONDecodeError("half", "", 0)
        return f"client of {file}"

    monkeypatch.setattr(_hub, "time", clock)
    monkeypatch.setattr(ipp, "Client", client)
    assert connect(Path("file")) == "client of file"
    assert asked[-1] == pytest.approx(left)


def test_a_file_that_never_is_one_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """After its time, not before."""
    clock = Clock()
    monkeypatch.setattr(_hub, "time", clock)

    def client(file: str, timeout: float) -> None:
        assert clock.now < 60
        raise json.JSONDecodeError("half", "", 0)

    monkeypatch.setattr(ipp, "Client", client)
    with pytest.raises(RankError, match="is no connection file"):
        connect(Path("file"), 3.0)
    assert clock.now == pytest.approx(53.05, abs=0.06)


def test_a_message_is_sealed_for_the_controller_and_its_socket_waits_two_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    """With CURVE: keys of its own and the controller's before it connects; who is gone holds nobody up for longer than its linger."""
    log: list[tuple[str, object]] = []

    class Socket:
        def __init__(self, kind: int | None = None) -> None:
            log.append(("kind", kind))

        def __enter__(self) -> Socket:
            return self

        def __exit__(self, *_: object) -> None:
            log.append(("closed", None))

        def __setattr__(self, name: str, value: object) -> None:
            log.append((name, value))

        def connect(self, address: str) -> None:
            log.append(("connect", address))

    class Context(Socket):
        socket = Socket

        def __init__(self) -> None:
            """Say nothing."""

    monkeypatch.setattr(zmq, "Context", Context)
    monkeypatch.setattr(zmq, "curve_keypair", lambda: (b"own public", b"own secret"))
    monkeypatch.setattr(Session, "send", lambda self, *given, **more: log.append(("send", more["content"])))
    unregister(Controller("tcp://x", b"k", "hmac-sha256", b"theirs"), [4])
    assert log == [
        ("kind", zmq.DEALER), ("linger", 2000), ("curve_publickey", b"own public"), ("curve_secretkey", b"own secret"),
        ("curve_serverkey", b"theirs"), ("connect", "tcp://x"), ("send", {"id": 4}), ("closed", None), ("closed", None),
    ]  # fmt: skip


def test_a_file_is_read_again_at_the_end_of_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """With no time at all it is read twice: now, and when the time is over."""
    clock, read = Clock(), []

    def client(file: str, timeout: float) -> None:
        read.append(timeout)
        raise json.JSONDecodeError("half", "", 0)

    monkeypatch.setattr(_hub, "time", clock)
    monkeypatch.setattr(ipp, "Client", client)
    with pytest.raises(RankError, match=r"^cluster: file is no connection file; .* Start the controller\.$"):
        connect(Path("file"), 0.0)
    assert read == [1.0, 1.0]


@pytest.mark.parametrize("error", [TimeoutError("late"), OSError("late"), ipp.error.TimeoutError("late")])
def test_a_controller_that_does_not_answer_is_told(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    """Whichever way its client says so: the file, the words and the time."""

    def client(file: str, timeout: float) -> None:
        raise error

    monkeypatch.setattr(ipp, "Client", client)
    with pytest.raises(RankError) as caught:
        connect(Path("file"), 3.0)
    assert str(caught.value) == (
        "cluster: no controller answers at what file says (late); expected one within 3 s. "
        "Start it with `ipcluster start` or `ipcontroller`, and see that this machine can reach it."
    )
