"""The sentence about an address that cannot be had."""

import socket
from errno import EACCES, EADDRINUSE, EADDRNOTAVAIL, EMFILE

import pytest

from disagg_contract.errors import ConfigError
from disagg_contract.listening import cannot_listen

BIND = "error while attempting to bind on address ('10.9.9.9', 80): cannot assign requested address"


@pytest.mark.parametrize(
    ("error", "sentence"),
    [
        (OSError(EADDRINUSE, "Address already in use"), "port 80 on 10.9.9.9 is in use; choose another with --kv-port"),
        (
            OSError(EACCES, "Permission denied"),
            "port 80 on 10.9.9.9 may not be opened (permission denied); choose another with --kv-port",
        ),
        (
            OSError(EADDRNOTAVAIL, BIND),
            "--host=10.9.9.9: cannot assign requested address; "
            "use an address of this machine, like 127.0.0.1, or 0.0.0.0 for all",
        ),
        (
            socket.gaierror(-2, "Name or service not known"),
            "--host=10.9.9.9: name or service not known; "
            "use an address of this machine, like 127.0.0.1, or 0.0.0.0 for all",
        ),
        (
            OSError(EMFILE, "Too many open files"),
            "port 80 on 10.9.9.9 (--kv-port) cannot be listened on: too many open files",
        ),
    ],
)
def test_the_sentence_names_the_flag(error: OSError, sentence: str) -> None:
    found = cannot_listen(error, host="10.9.9.9", port=80, flag="--kv-port")
    assert isinstance(found, ConfigError)
    assert str(found) == sentence


def test_no_host_is_every_address() -> None:
    found = cannot_listen(OSError(EADDRINUSE, "in use"), host="", port=80)
    assert str(found) == "port 80 on all addresses is in use; choose another with --port"
