"""placeholder"""
from pathlib import Path
KINDS=("base",)
DEFAULT_TAG="disagg:dev"
def build_all(kinds: list[str], *, cache: Path, tag: str) -> dict[str, Path]:
    return {}
