"""Reading which control group hierarchies this machine has."""

from pathlib import Path

from embedded.cgroups import Hierarchy, hierarchies

_MOUNTS = """\
/dev/sda1 / ext4 rw 0 0
cgroup /sys/fs/cgroup/cpuset cgroup rw,relatime,cpuset 0 0
cgroup2 /sys/fs/cgroup/unified cgroup2 rw,relatime 0 0
"""


def test_both_versions_are_listed_and_nothing_else() -> None:
    assert hierarchies(_MOUNTS) == [
        Hierarchy(Path("/sys/fs/cgroup/cpuset"), 1, frozenset({"rw", "relatime", "cpuset"})),
        Hierarchy(Path("/sys/fs/cgroup/unified"), 2, frozenset()),
    ]
