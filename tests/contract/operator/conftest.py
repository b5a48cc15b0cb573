"""A stand-in for ``disagg`` that starts in milliseconds: what the process runtime needs of its programs, no more."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from disagg_crds import DisaggDeployment, read_deployment

PROGRAM = """
import json, os, signal, sys, time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

kind, flags = sys.argv[1], dict(item[2:].split("=", 1) for item in sys.argv[2:])
folder = os.path.dirname(os.path.abspath(__file__))
if kind == "worker" and os.path.exists(os.path.join(folder, "broken")):
    print("unknown model: known are a, b")
    sys.exit(2)
state = {"draining": False}


class Handler(BaseHTTPRequestHandler):
    def answer(self, code, document):
        body = json.dumps(document).encode()
        self.send_response(code)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self):
        busy = os.path.exists(os.path.join(folder, "busy"))
        if self.path == "/drain":
            inflight = 1 if busy else 0
            self.answer(200, {"draining": state["draining"], "empty": not busy, "inflight": inflight})
        else:
            self.answer(503 if state["draining"] else 200, {})

    def do_POST(self):
        state["draining"] = True
        self.answer(200, {})

    def do_DELETE(self):
        state["draining"] = False
        self.answer(200, {})

    def log_message(self, *args):
        pass


deaf = os.path.exists(os.path.join(folder, "deaf"))
signal.signal(signal.SIGTERM, signal.SIG_IGN if deaf else lambda *_: os._exit(0))
print(kind, "listens on", flags["port"])
ThreadingHTTPServer(("127.0.0.1", int(flags["port"])), Handler).serve_forever()
"""


@pytest.fixture
def program(tmp_path: Path) -> tuple[str, ...]:
    """Stands for ``disagg``; files ``busy``, ``broken`` and ``deaf`` beside it change what it does."""
    folder = tmp_path / "program"
    folder.mkdir()
    script = folder / "program.py"
    script.write_text(PROGRAM)
    return (sys.executable, "-S", str(script))


@pytest.fixture
def make_deployment() -> Callable[..., DisaggDeployment]:
    def make(*, decode: dict[str, Any] | None = None, **spec: Any) -> DisaggDeployment:
        gpu = {"type": "a100-80gb"}
        return read_deployment(
            {
                "apiVersion": "disagg.dev/v1alpha1",
                "kind": "DisaggDeployment",
                "metadata": {"name": "local"},
                "spec": {
                    "model": "opt-13b",
                    "slo": {"ttftSeconds": 0.25, "tpotSeconds": 0.1},
                    "prefill": {"replicas": 1, "gpu": gpu},
                    "decode": {"gpu": gpu, **(decode or {"autoscaling": {"min": 1, "max": 4, "initial": 1}})},
                    **spec,
                },
            }
        )

    return make
