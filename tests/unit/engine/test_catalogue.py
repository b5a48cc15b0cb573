"""Catalogues: names, data that users add, refusals by field."""

from __future__ import annotations

import subprocess
import sys

import pytest

from disagg_engine.catalogue import Catalogue, Precision, normalise, roofline_constants
from disagg_engine.errors import CatalogueError, UnknownNameError


def test_names_every_gpu_and_model_of_the_reference(catalogue: Catalogue) -> None:
    gpus = {gpu.name for gpu in catalogue.gpus}
    models = {model.name for model in catalogue.models}
    assert gpus >= {"a100-80gb", "h100", "h200", "b200", "gb200-nvl72", "l40s", "a10g", "rtx-4090", "mi300x"}
    assert models >= {"opt-13b", "opt-66b", "opt-175b", "llama-3-8b", "llama-3.1-70b", "qwen3-32b", "deepseek-v3"}
    assert {"nvlink", "pcie", "ib-200", "ib-400", "ib-800", "eth-25", "eth-100"} == {x.name for x in catalogue.links}
    assert all(item.source for item in (*catalogue.gpus, *catalogue.models, *catalogue.links))


@pytest.mark.parametrize("name", ["A100-80GB", "a100_80gb", " a100 80gb ", "A100", "a100-sxm"])
def test_names_are_case_blind_and_have_aliases(name: str, catalogue: Catalogue) -> None:
    assert catalogue.gpu(name) is catalogue.gpu("a100-80gb")


def test_hub_names_find_models(catalogue: Catalogue) -> None:
    assert catalogue.model("facebook/opt-13b").name == "opt-13b"
    assert catalogue.model("meta-llama/Meta-Llama-3-8B").name == "llama-3-8b"


def test_every_name_is_its_own_normal_form(catalogue: Catalogue) -> None:
    for item in (*catalogue.gpus, *catalogue.models, *catalogue.links):
        assert normalise(item.name) == item.name


def test_unknown_name_lists_the_known(catalogue: Catalogue) -> None:
    with pytest.raises(UnknownNameError) as caught:
        catalogue.gpu("v100")
    message = str(caught.value)
    assert "'v100'" in message
    assert all(gpu.name in message for gpu in catalogue.gpus)


def test_kv_sizes_follow_the_configurations(catalogue: Catalogue) -> None:
    """2 · layers · KV heads · head size · 2 bytes; layers · (512 + 64) · 2 with MLA."""
    expected = {
        "opt-13b": 2 * 40 * 5120 * 2,
        "opt-66b": 2 * 64 * 9216 * 2,
        "opt-175b": 2 * 96 * 12288 * 2,
        "llama-3-8b": 2 * 32 * 8 * 128 * 2,
        "llama-3.1-70b": 2 * 80 * 8 * 128 * 2,
        "qwen3-32b": 2 * 64 * 8 * 128 * 2,
        "deepseek-v3": 61 * (512 + 64) * 2,
        "mixtral-8x7b": 2 * 32 * 8 * 128 * 2,
    }
    assert {name: catalogue.model(name).kv_bytes_per_token for name in expected} == expected


def test_kv_sizes_are_the_published_ones(catalogue: Catalogue) -> None:
    """Insights into DeepSeek-V3 (ISCA 2025), table 1: KV a token of DeepSeek-V3 (MLA) and Llama-3.1 405B (GQA)."""
    assert catalogue.model("deepseek-v3").kv_bytes_per_token == 70.272e3
    assert catalogue.model("llama-3.1-405b").kv_bytes_per_token == 516.096e3


def test_parameters_follow_the_shapes(catalogue: Catalogue) -> None:
    """Attention, feed-forward, experts and vocabulary add up to the stated sizes: no shape is mistyped."""
    for model in catalogue.models:
        attention, feed = model.attention, model.feed_forward
        assert attention is not None
        assert feed is not None
        if attention.latent:
            continue  # the ranks of the query are not in the catalogue
        projections = model.hidden * attention.head_size * 2 * (attention.heads + attention.kv_heads)
        matrices = 3 if feed.gated else 2
        dense_layers = model.layers - (model.experts.layers if model.experts else 0)
        total = model.layers * projections + dense_layers * matrices * model.hidden * feed.intermediate
        total += model.experts.parameters if model.experts else 0.0
        embeddings = feed.vocabulary * model.hidden
        tied = model.name.startswith("opt")
        assert total + embeddings * (1 if tied else 2) == pytest.approx(model.parameters, rel=0.015), model.name


def test_kv_of_few_heads_is_kept_several_times(catalogue: Catalogue) -> None:
    llama, deepseek, opt = (catalogue.model(name) for name in ("llama-3.1-70b", "deepseek-v3", "opt-66b"))
    assert [llama.kv_copies(tensor) for tensor in (1, 3, 8, 16)] == [1, 1, 1, 2]
    assert [deepseek.kv_copies(tensor) for tensor in (1, 4)] == [1, 4]
    assert opt.kv_copies(8) == 1


def test_every_gpu_has_power_and_price(catalogue: Catalogue) -> None:
    for gpu in catalogue.gpus:
        assert gpu.watts is not None
        assert gpu.dollars_per_hour is not None
        assert 0 < gpu.idle_share < 1


def test_narrow_weights_use_the_narrow_peak(catalogue: Catalogue) -> None:
    peaks = {name: [catalogue.gpu(name).peak_flops(p) / 1e12 for p in Precision] for name in ("a100", "h100", "b200")}
    assert peaks == {"a100": [312, 312, 312], "h100": [989, 1979, 1979], "b200": [2250, 4500, 9000]}


def test_deepseek_reads_few_weights_for_one_token_and_all_for_many(catalogue: Catalogue) -> None:
    model = catalogue.model("deepseek-v3")
    assert model.read_bytes(1) == pytest.approx(2 * model.active_parameters, rel=0.02)
    assert model.read_bytes(100_000) == pytest.approx(model.weight_bytes, rel=1e-6)
    reads = [model.read_bytes(tokens) for tokens in (1, 8, 64, 512)]
    assert reads == sorted(reads)


EXTRA = """
gpus:
  My GPU:
    aliases: [mine]
    flops: 100e12
    memory_bytes: 50e9
    memory_bandwidth: 1.0e+12
    pcie_bandwidth: 32e9
    load_bandwidth: 1e9
"""


def test_user_document_adds_entries_and_leaves_the_rest(catalogue: Catalogue) -> None:
    extended = catalogue.extended(EXTRA)
    assert extended.gpu("mine").flops == 100e12
    assert extended.gpu("my-gpu").nvlink_bandwidth == 0
    assert extended.gpu("h100") == catalogue.gpu("h100")
    with pytest.raises(UnknownNameError):
        catalogue.gpu("mine")


def test_user_document_replaces_an_entry(catalogue: Catalogue) -> None:
    fields = {
        "parameters": 7e9,
        "layers": 32,
        "hidden": 4096,
        "kv_bytes_per_token": 131072,
        "max_context_tokens": 4096,
    }
    assert catalogue.extended({"models": {"llama-3-8b": fields}}).model("Llama-3-8B").parameters == 7e9


@pytest.mark.parametrize(
    ("document", "named"),
    [
        ("gpus: {x: {flops: 1}}", "gpus.x.memory_bytes is missing"),
        ("gpus: {x: {flops: -1}}", "gpus.x.flops is -1"),
        ("gpus: {x: {flops: .nan}}", "gpus.x.flops is nan"),
        ("gpus: {x: {flops: fast}}", "gpus.x.flops is 'fast'"),
        ("gpus: {x: {flops: true}}", "gpus.x.flops is True"),
        ("gpus: {x: 3}", "gpus.x is 3"),
        ("gpus: [1]", "gpus must be a mapping"),
        ("cards: {}", "unknown sections: cards"),
        ("just text", "must be a mapping"),
        ("gpus: {x", "is not YAML"),
        ("models: {x: {parameters: 1.0e+9, active_parameters: 2.0e+9}}", "active_parameters is"),
        ("gpus: {x: {idle_share: 1.5}}", "idle_share is 1.5"),
        ("models: {x: {attention: {heads: 2, kv_heads: 4, head_size: 8}}}", "attention.kv_heads is 4"),
        (
            "models: {x: {parameters: 9, layers: 2, kv_bytes_per_token: 7, attention: {heads: 1, head_size: 2}}}",
            "kv_bytes_per_token is 7; attention says 16",
        ),
        ("models: {x: {feed_forward: {intermediate: 1, vocabulary: 2, gated: 3}}}", "feed_forward.gated is 3"),
        (
            "models: {x: {parameters: 100, active_parameters: 3, "
            "experts: {routed: 2, taken: 2, layers: 2, parameters_each: 1}}}",
            "pass",
        ),
        ("links: {x: {bandwidth: 1, speed: 2}}", "unknown fields: speed"),
        ("links: {x: {bandwidth: 0}}", "links.x.bandwidth is 0"),
        ("links: {x: {bandwidth: 1, aliases: y}}", "aliases is 'y'"),
    ],
)
def test_malformed_document_is_refused_by_field(document: str, named: str, catalogue: Catalogue) -> None:
    with pytest.raises(CatalogueError, match=r"user\.yaml") as caught:
        catalogue.extended(document, what="user.yaml")
    assert named in str(caught.value)


def test_constants_are_those_of_the_reference() -> None:
    constants = roofline_constants()
    assert (constants.compute_efficiency, constants.half_efficiency_tokens) == (0.7, 100)
    assert (constants.memory_efficiency, constants.tensor_penalty) == (0.8, 0.15)
    assert (constants.fixed_seconds, constants.reserved_bytes) == (0.001, 6e9)


def test_catalogue_alone_brings_in_no_other_part_of_the_engine() -> None:
    """The operator imports the catalogue and must not pay for the engine."""
    code = (
        "import sys, disagg_engine.catalogue as c; c.default(); print(*sorted(m for m in sys.modules if 'disagg' in m))"
    )
    paths = [str(path) for path in sys.path if path]
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env={"PYTHONPATH": ":".join(paths)}
    )
    assert {name.split(".")[1] for name in done.stdout.split() if "." in name} == {"catalogue", "errors"}
