"""What must not leave a machine in a text."""

from pathlib import Path

import pytest

from kernelwright.core.redact import secrets_in, without_keys, without_passwords, without_people
from kernelwright.store.secrets import known_secrets

PLANTED = (
    "sk-ant-api03-abcdefghijklmnop0123",
    "sk-proj-abcdefghijklmnop0123",
    "ghp_0123456789abcdefghijABCDEFGHIJ012345",
    "github_pat_11ABCDEFG0123456789_abcdefghij",
    "glpat-abcdefghij0123456789",
    "hf_abcdefghijklmnopqrstuvwxyz",
    "xoxb-1234567890-abcdefghij",
    "AKIAABCDEFGHIJKLMNOP",
    "AIzaSyA-0123456789abcdefghijklmnopqrstu",
    "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.abcdefghijk",
    "-----BEGIN RSA PRIVATE KEY-----\nMIIEow\n-----END RSA PRIVATE KEY-----",
)


@pytest.mark.parametrize("key", PLANTED)
def test_what_can_only_be_a_key_is_taken_out(key: str) -> None:
    assert without_keys(f'auth("{key}"), next') == 'auth("<secret>"), next'


def test_what_an_environment_calls_a_key_is_taken_out_whatever_it_looks_like() -> None:
    environment = {
        "MY_API_KEY": "plain words here",
        "KEY_FILE": "/etc/keys/mine",
        "TOKEN": "short",
        "PATH": "/usr/bin",
    }
    assert secrets_in(environment) == ("plain words here",)
    assert without_keys("say plain words here now", secrets_in(environment)) == "say <secret> now"


def test_the_key_in_the_key_file_is_known_and_a_file_that_is_gone_hides_nothing(tmp_path: Path) -> None:
    file = tmp_path / "key"
    file.write_text("open-sesame-2718\n")
    environment = {"KERNELWRIGHT_LLM_KEY_FILE": str(file), "HOUSE_TOKEN": "a-longer-word-than-that"}
    assert known_secrets(environment) == ("a-longer-word-than-that", "open-sesame-2718")
    assert without_keys("it is open-sesame-2718.", known_secrets(environment)) == "it is <secret>."
    file.unlink()
    assert known_secrets(environment) == ("a-longer-word-than-that",)


def test_passwords_in_addresses_and_headers_are_taken_out() -> None:
    assert without_keys("postgresql://me:hunter2@host/db") == "postgresql://me:<secret>@host/db"
    assert without_keys("Authorization: Bearer abc.def-ghi") == "Authorization: Bearer <secret>"
    assert without_passwords("db_password = 'correct-horse'") == "db_password = '<secret>'"
    assert without_passwords('{"api_key": "0123456789"}') == '{"api_key": "<secret>"}'


@pytest.mark.parametrize(
    "source",
    [
        "for (int64_t token = 0; token < tokens; ++token) sum += x[token];",
        "constexpr uint32_t KEY = 0x9E3779B9;  // 30cb4087b29083ac414f9f2559a05a07d245fb622820f26b0532198413d0335c",
        "risk-free: sk-x and https://example.org/a@b and /rooted and a/home/of",
    ],
)
def test_a_kernel_stays_as_it_is(source: str) -> None:
    assert without_people(without_passwords(without_keys(source))) == source


def test_home_folders_and_names_are_taken_out() -> None:
    text = (
        "/home/greta/model.py, /Users/Greta B/x, /root/.cache, /srv/greta/y by greta on box-17; gretas root"
    )
    found = without_people(text, homes=("/srv/greta",), names=("greta", "box-17", "root", "abc"))
    assert found == "~/model.py, ~ B/x, ~/.cache, ~/y by <person> on <person>; gretas root"
