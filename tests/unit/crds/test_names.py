"""Derived names fit, stay apart and stay the same."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from disagg_crds import NameTooLong, Role, child_name, group_name, planner_name, router_name

DNS_LABEL = re.compile(r"[a-z]([-a-z0-9]{0,61}[a-z0-9])?")
owners = st.from_regex(r"[a-z]([-a-z0-9]{0,61}[a-z0-9])?", fullmatch=True)
NAMES = (router_name, planner_name, *((lambda owner, role=role: group_name(owner, role)) for role in Role))


def test_short_names_are_plain() -> None:
    assert child_name("chat-13b", "prefill") == "chat-13b-prefill"
    assert group_name("chat-13b", Role.DECODE) == "chat-13b-decode"


def test_op15_long_names_keep_apart() -> None:
    shared = "a" * 60
    first, second, longest = shared + "x", shared + "y", "a" * 63
    names = [name(owner) for owner in (first, second, longest) for name in NAMES]
    assert len(set(names)) == len(names)
    assert all(DNS_LABEL.fullmatch(name) for name in names)


def test_op15_names_are_stable_over_restarts() -> None:
    assert child_name("a" * 63, "router") == "a" * 47 + "-7d3e74a0-router"


@given(owners, owners)
def test_op15_any_two_owners_keep_apart(first: str, second: str) -> None:
    for name in NAMES:
        assert DNS_LABEL.fullmatch(name(first))
        assert (name(first) == name(second)) == (first == second)


def test_a_suffix_without_room_is_refused() -> None:
    with pytest.raises(NameTooLong, match="at most 52 fit into 63"):
        child_name("a", "s" * 63)
