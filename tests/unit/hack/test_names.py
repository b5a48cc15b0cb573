"""Names and subnets: different for every state folder, the same for the same one, never on top of each other."""

from ipaddress import IPv4Address, IPv4Network
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from embedded.errors import SpecError
from embedded.names import MAX_NODES, Subnets, choose_subnets, names_for

FOLDERS = st.from_regex(r"/var/tmp/[a-z0-9]{1,30}", fullmatch=True).map(Path)


@given(FOLDERS, FOLDERS)
def test_two_folders_share_no_name(first: Path, second: Path) -> None:
    one, other = names_for(first), names_for(second)
    same = first == second
    assert (one.tag == other.tag) is same
    assert (one.veth == other.veth) is same
    assert (one.cgroup == other.cgroup) is same
    assert (one.netns == other.netns) is same


@given(FOLDERS)
def test_an_interface_name_fits_into_the_kernels_fifteen_characters(folder: Path) -> None:
    assert len(names_for(folder).veth) <= 15


@given(FOLDERS)
def test_a_folder_gets_its_network_again_while_it_is_free(folder: Path) -> None:
    assert choose_subnets(folder, []) == choose_subnets(folder, [IPv4Network("192.168.0.0/16")])


@given(FOLDERS)
def test_a_taken_network_is_left_alone(folder: Path) -> None:
    first = choose_subnets(folder, [])
    inside_it = IPv4Network(f"10.{first.octet}.7.0/24")
    second = choose_subnets(folder, [inside_it])
    assert not second.all.overlaps(inside_it)


def test_when_everything_is_taken_it_says_so() -> None:
    with pytest.raises(SpecError, match="in use on this host"):
        choose_subnets(Path("/var/tmp/a"), [IPv4Network("10.0.0.0/8")])


def test_the_parts_of_a_network_do_not_overlap() -> None:
    subnets = Subnets(100)
    parts = [IPv4Network(text) for text in (subnets.services, subnets.pods, subnets.fake_pods, "10.100.0.0/23")]
    assert all(part.subnet_of(subnets.all) for part in parts)
    assert not any(a.overlaps(b) for i, a in enumerate(parts) for b in parts[i + 1 :])
    assert IPv4Address(subnets.node(MAX_NODES)) in parts[3]
    assert IPv4Address(subnets.dns_service) in parts[0]
    assert all(IPv4Network(subnets.node_pods(i)).subnet_of(parts[1]) for i in (1, MAX_NODES))


@pytest.mark.parametrize(
    ("folder", "complaint"),
    [
        ("relative/path", "absolute"),
        ("/var/tmp/" + "long" * 20, "shorter"),
        ("/run/cluster", "can't be below /run"),
        ("/var/run/cluster", "can't be below"),
        ("/var/lib/cluster", "can't be below /var/lib"),
    ],
)
def test_a_folder_that_cannot_hold_a_cluster_is_refused(folder: str, complaint: str) -> None:
    with pytest.raises(SpecError, match=complaint):
        names_for(Path(folder))
