import argparse

import pytest

from disagg_contract.config import CONFIGS, PlannerConfig, Role, RouterConfig, WorkerConfig
from disagg_contract.errors import ConfigError
from disagg_contract.settings import Config, add_arguments, from_namespace, parse, to_args


def test_args_round_trip() -> None:
    config = WorkerConfig(role=Role.DECODE, port=0, time_scale=2.5, prefix_caching=False, served_model_name="a b=c")
    assert parse(WorkerConfig, to_args(config), {}) == config


@pytest.mark.parametrize("kind", CONFIGS)
def test_defaults_need_no_args(kind: type[Config]) -> None:
    assert to_args(kind()) == []
    assert parse(kind, [], {}) == kind()


def test_flags_override_environment_and_environment_overrides_defaults() -> None:
    environ = {"DISAGG_ROUTER_PORT": "7000", "DISAGG_ROUTER_POLICY": "round-robin"}
    config = parse(RouterConfig, ["--port=8000"], environ)
    assert config.port == 8000
    assert config.policy.value == "round-robin"


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        ("--role=both", "--role=both: use one of prefill, decode, worker"),
        ("--max-sequences=0", "--max-sequences=0: use a number of at least 1"),
        ("--port=70000", "--port=70000: use a number from 0 to 65535"),
        ("--time-scale=0", "--time-scale=0: use a number above 0"),
        ("--time-scale=nan", "--time-scale=nan: use a finite number"),
        ("--block-tokens=x", "--block-tokens=x: use a whole number"),
        ("--log-level=loud", "--log-level=loud: use one of debug, info, warning, error"),
        ("--prefix-caching=maybe", "--prefix-caching=maybe: use true or false"),
    ],
)
def test_wrong_value_names_flag_value_and_remedy(argument: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse(WorkerConfig, [argument], {})
    assert str(caught.value) == message


def test_every_wrong_setting_is_reported_at_once() -> None:
    with pytest.raises(ConfigError) as caught:
        parse(PlannerConfig, ["--attainment=2"], {"DISAGG_PLANNER_INTERVAL_SECONDS": "-1"})
    assert len(str(caught.value).splitlines()) == 2


def test_unknown_flag_is_refused() -> None:
    with pytest.raises(ConfigError, match="--replcias"):
        parse(PlannerConfig, ["--replcias=2"], {})


def test_help_names_unit_default_and_variable() -> None:
    parser = argparse.ArgumentParser(prog="disagg worker")
    add_arguments(parser, WorkerConfig)
    text = " ".join(parser.format_help().split())
    assert "--kv-port PORT" in text
    assert "modelled seconds in one wall second (default 1.0; DISAGG_WORKER_TIME_SCALE)" in text
    assert from_namespace(WorkerConfig, parser.parse_args([]), {}) == WorkerConfig()
