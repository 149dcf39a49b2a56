"""The controller: how a client connects to it, and how it learns that an engine is gone."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpulab.errors import RankError, message_of

_CONNECT_SECONDS = 20.0


@dataclass(frozen=True)
class Controller:
    """What an engine's connection file says: where a message to the controller goes, and the key
    that signs it.
    """

    registration: str
    key: bytes
    scheme: str
    server_key: bytes | None

    @classmethod
    def read(cls, security: Path) -> Controller:
        """Read the file of a controller from its folder of security files."""
        found = json.loads((security / "ipcontroller-engine.json").read_text(encoding="utf-8"))
        server_key = found.get("curve_serverkey")
        return cls(
            f"{found['interface']}:{found['registration']}",
            found["key"].encode(),
            found["signature_scheme"],
            server_key.encode() if server_key else None,
        )


def connect(file: Path, seconds: float = _CONNECT_SECONDS) -> Any:
    """Return a client of the controller that wrote a connection file.

    Raises
    ------
    RankError
        If no controller answers.
    """
    import ipyparallel as ipp

    end = time.monotonic() + seconds
    while True:
        try:
            return ipp.Client(str(file), timeout=max(1.0, end - time.monotonic()))
        except json.JSONDecodeError as error:  # seen before it was written to the end
            if time.monotonic() > end:
                raise RankError(
                    f"cluster: {file} is not a connection file; expected the file that a "
                    "controller writes. Start the controller."
                ) from error
            time.sleep(0.05)
        except (ipp.error.TimeoutError, TimeoutError, OSError) as error:
            raise RankError(
                f"cluster: no controller answers at the address in {file} ({message_of(error)}); "
                f"expected one within {seconds:.0f} s. "
                "Start it with `ipcluster start` or `ipcontroller`, and check that this machine "
                "can reach it."
            ) from error


def unregister(controller: Controller, engine: int) -> None:
    """Tell the controller that an engine is gone, as the engine's nanny does; it then tells every
    client.
    """
    import zmq
    from jupyter_client.session import Session

    session = Session(key=controller.key, signature_scheme=controller.scheme)
    with zmq.Context() as context, context.socket(zmq.DEALER) as dealer:
        dealer.linger = 2000
        if controller.server_key is not None:
            dealer.curve_publickey, dealer.curve_secretkey = zmq.curve_keypair()
            dealer.curve_serverkey = controller.server_key
        dealer.connect(controller.registration)
        session.send(dealer, "unregistration_request", content={"id": engine})
