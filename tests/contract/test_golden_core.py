"""Golden files of the contract: what a released program of either side has already been built against.

A change here is a change of the protocol. ``DISAGG_WRITE_GOLDEN=1`` rewrites the files; the diff is then reviewed.
"""

import json
import os
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from disagg_contract import config, control, discovery, labels, metrics, ports, profile, settings, tokens, transfer

GOLDEN = Path(__file__).parent / "golden"

INFO = discovery.WorkerInfo(
    engine_id="7d0f7cf2a5b94b0e",
    role=labels.Role.DECODE,
    model="opt-13b",
    gpu="a100-80gb",
    block_tokens=16,
    kv_capacity_tokens=58594,
    max_context_tokens=2048,
    tokenizer_digest="aa",
    template_digest="bb",
    hash_digest="cc",
    kv_host="10.0.0.7",
    kv_port=5600,
    kv_events_port=5557,
    revision="5f6d",
    version="0.1.0",
    ready=True,
)
FILE = discovery.DiscoveryFile(
    deployment="chat-13b",
    workers=(
        discovery.DiscoveredWorker(
            uid="u1", name="chat-13b-prefill-a", role=labels.Role.PREFILL, host="127.0.0.1", port=1
        ),
        discovery.DiscoveredWorker(
            uid="u2",
            name="chat-13b-decode-b",
            role=labels.Role.DECODE,
            host="127.0.0.1",
            port=2,
            draining=True,
            domain="a",
        ),
    ),
)
PROFILE = profile.Profile(
    model="opt-13b",
    prefill_gpu="a100-80gb",
    decode_gpu="a100-80gb",
    prefill_tensor=1,
    prefill_pipeline=1,
    decode_tensor=1,
    decode_pipeline=1,
    kv_capacity_tokens=58594,
    kv_bytes_per_token=819200,
    prefill=(profile.PrefillPoint(755, 0.104, 7260.0),),
    decode=(profile.DecodePoint(855, 32, 0.0307, 1042.0),),
)
REMOTE = transfer.RemoteKV(
    engine_id="7d0f7cf2a5b94b0e",
    block_ids=(4, 5, 9),
    host="10.0.0.6",
    port=5600,
    transfer_id="t-1",
    tokens=40,
    block_tokens=16,
    logits="00ff",
    lease_seconds=30.0,
)
PROOF = tokens.Tokens(("a-token-of-this-test",)).prove(bytes(range(32)), engine_id="7d0f7cf2a5b94b0e")
FRAMES: tuple[transfer.Frame, ...] = (
    transfer.Pull("t-1", "7d0f7cf2a5b94b0e", (4, 5, 9), 16),
    transfer.Block.seal(index=0, tokens=16, digest=bytes(range(16)), payload=b"kv" * 4),
    transfer.End(3),
    transfer.Renew("t-1"),
    transfer.Ack("t-1"),
    transfer.Refused("unknown-transfer", "transfer t-1 is not held here"),
    transfer.Challenge(bytes(range(32))),
    transfer.Proof("7d0f7cf2a5b94b0e", PROOF),
)


def flags_of(kind: type[settings.Config]) -> dict[str, Any]:
    return {
        settings.flag(item.name): {
            "variable": settings.variable(kind, item.name),
            "default": item.default.value if isinstance(item.default, labels.StrEnum) else item.default,
        }
        for item in fields(kind)
    }


DOCUMENTS: dict[str, Any] = {
    "labels.json": {name: value for name, value in vars(labels).items() if name.isupper() and isinstance(value, str)}
    | {"worker_selector(chat)": labels.worker_selector("chat"), "roles": [role.value for role in labels.Role]},
    "ports.json": {name: value for name, value in vars(ports).items() if name.isupper()},
    "flags.json": {kind.program: flags_of(kind) for kind in config.CONFIGS},
    "metrics.json": {m.name: {"kind": m.kind.value, "labels": m.labels, "buckets": m.buckets} for m in metrics.ALL},
    "prefill_leg.json": {"kv_transfer_params": transfer.PREFILL_LEG},
    "decode_leg.json": {"kv_transfer_params": REMOTE.to_params()},
    "worker_info.json": json.loads(INFO.to_json()),
    "discovery_file.json": json.loads(FILE.to_json()),
    "profile.json": json.loads(PROFILE.to_json()),
    "control_scale.json": json.loads(
        control.Scale(role=labels.Role.DECODE, replicas=2, resource_version="17", current=2, ready=1).to_json()
    ),
    "frames.json": [transfer.encode_frame(frame).hex() for frame in FRAMES],
}


@pytest.mark.parametrize("name", sorted(DOCUMENTS))
def test_document_is_the_golden_one(name: str) -> None:
    text = json.dumps(DOCUMENTS[name], indent=1) + "\n"
    path = GOLDEN / name
    if os.environ.get("DISAGG_WRITE_GOLDEN"):
        path.write_text(text)
    assert json.loads(path.read_text()) == json.loads(text)


def test_readers_accept_the_golden_bytes() -> None:
    assert discovery.WorkerInfo.from_json((GOLDEN / "worker_info.json").read_bytes()) == INFO
    assert discovery.DiscoveryFile.from_json((GOLDEN / "discovery_file.json").read_bytes()) == FILE
    assert profile.Profile.from_json((GOLDEN / "profile.json").read_bytes()) == PROFILE
    decode_leg = json.loads((GOLDEN / "decode_leg.json").read_text())["kv_transfer_params"]
    assert transfer.RemoteKV.from_params(decode_leg) == REMOTE
    assert transfer.wants_remote_prefill(decode_leg)
    prefill_leg = json.loads((GOLDEN / "prefill_leg.json").read_text())["kv_transfer_params"]
    assert transfer.wants_remote_decode(prefill_leg)
    assert not transfer.wants_remote_prefill(prefill_leg)


def test_frame_reader_accepts_the_golden_bytes_in_any_split() -> None:
    stream = b"".join(bytes.fromhex(line) for line in json.loads((GOLDEN / "frames.json").read_text()))
    for size in (1, 2, 3, 7, 1000):
        reader = transfer.FrameReader()
        got = [frame for start in range(0, len(stream), size) for frame in reader.feed(stream[start : start + size])]
        assert tuple(got) == FRAMES


def test_every_metric_has_a_name_of_its_own_and_base_units() -> None:
    names = [metric.name for metric in metrics.ALL]
    assert len(names) == len(set(names))
    for metric in metrics.ALL:
        assert not metric.name.endswith("_total")
        assert "_ms" not in metric.name
        assert (metric.kind is metrics.Kind.HISTOGRAM) == bool(metric.buckets)
        assert list(metric.buckets) == sorted(set(metric.buckets))
