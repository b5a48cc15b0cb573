import pytest

from disagg_contract.discovery import DiscoveryFile, WorkerInfo
from disagg_contract.errors import DocumentError


def test_missing_field_is_named() -> None:
    with pytest.raises(DocumentError, match=r"worker info: .*engine_id"):
        WorkerInfo.from_json(b"{}")


def test_wrong_type_is_named_with_its_path() -> None:
    with pytest.raises(DocumentError, match=r"discovery file: .*\$\.workers\[0\]\.port"):
        DiscoveryFile.from_json(b'{"workers":[{"uid":"u","name":"n","role":"decode","host":"h","port":"80"}]}')


def test_unknown_role_is_refused_and_new_fields_are_not() -> None:
    row = '{"uid":"u","name":"n","role":"%s","host":"h","port":80,"colour":"red"}'
    assert DiscoveryFile.from_json('{"workers":[' + row % "decode" + '],"later":1}').workers[0].port == 80
    with pytest.raises(DocumentError, match="role"):
        DiscoveryFile.from_json('{"workers":[' + row % "encode" + "]}")


def test_text_that_is_not_json_is_refused() -> None:
    with pytest.raises(DocumentError, match="not JSON"):
        DiscoveryFile.from_json(b"{")
