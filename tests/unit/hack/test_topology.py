"""What `--nodes`, `--gpus`, `--topology` and `--kwok` mean."""

import pytest

from embedded.errors import SpecError
from embedded.topology import DOMAIN_LABEL, kwok_nodes, parse_gpus, parse_topology, real_nodes


@pytest.mark.parametrize(
    ("spec", "nodes", "expected"),
    [("8", 1, [8]), ("8", 3, [8, 8, 8]), ("8,4", 2, [8, 4]), ("8,4", 4, [8, 4, 4, 4]), ("0, 4", 2, [0, 4])],
)
def test_gpus_are_one_number_or_one_a_node(spec: str, nodes: int, expected: list[int]) -> None:
    assert parse_gpus(spec, nodes=nodes) == expected


@pytest.mark.parametrize("spec", ["", "eight", "8,", "-1", "8,4,2", "1.5", "\u0664"])
def test_a_wrong_gpu_spec_is_named(spec: str) -> None:
    with pytest.raises(SpecError, match="--gpus"):
        parse_gpus(spec, nodes=2)


def test_two_domains_alternate() -> None:
    domains = [node.domain for node in real_nodes(count=3, gpus="4", topology="two-domains")]
    assert domains == ["domain-a", "domain-b", "domain-a"]


def test_one_node_wins_over_the_count() -> None:
    nodes = real_nodes(count=2, gpus="8", topology="one-node")
    assert [(node.name, node.domain, node.gpus) for node in nodes] == [("node-1", "domain-a", 8)]


def test_domains_can_be_named() -> None:
    assert parse_topology("rack-1,rack-1,rack-2", nodes=3) == ["rack-1", "rack-1", "rack-2"]


@pytest.mark.parametrize("spec", ["three-domains", "a,b,c", "a,", "a,b c"])
def test_a_wrong_topology_is_named(spec: str) -> None:
    with pytest.raises(SpecError, match="--topology"):
        parse_topology(spec, nodes=2)


@pytest.mark.parametrize("count", [0, -1, 65])
def test_the_number_of_real_nodes_has_limits(count: int) -> None:
    with pytest.raises(SpecError, match="--nodes"):
        real_nodes(count=count, gpus="4", topology="two-domains")


def test_kwok_nodes_fill_one_domain_after_the_other() -> None:
    nodes = kwok_nodes(count=5, gpus=8, domain_size=2)
    assert [node.domain for node in nodes] == [f"kwok-domain-{i}" for i in (1, 1, 2, 2, 3)]


def test_a_node_without_gpus_has_no_gpu_labels() -> None:
    (node,) = real_nodes(count=1, gpus="0", topology="one-domain")
    assert node.labels == {}


def test_a_node_with_gpus_names_its_domain_and_product() -> None:
    (node,) = real_nodes(count=1, gpus="8", topology="one-domain")
    assert node.labels[DOMAIN_LABEL] == "domain-a"
    assert {"nvidia.com/gpu.product", "nvidia.com/gpu.memory"} <= node.labels.keys()
