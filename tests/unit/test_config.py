"""Settings: flags beat the file, the file beats the defaults, and every mistake is named with its place."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernelwright.core.config import CONFIG_FILE, RunConfig, parse_toml, resolve
from kernelwright.core.errors import BadConfig


def refusal(flags: dict, text: str) -> str:
    with pytest.raises(BadConfig) as raised:
        resolve(flags, parse_toml(text, CONFIG_FILE), CONFIG_FILE)
    assert len(str(raised.value).splitlines()) == 1
    return str(raised.value)


def test_nothing_given_gives_the_defaults():
    assert resolve({}, {}, CONFIG_FILE) == RunConfig()
    assert RunConfig().alpha == 0.001


def test_flags_beat_the_file_and_the_file_beats_the_defaults():
    file_values = parse_toml('threads = 4\nbackend = "cpp"\n', CONFIG_FILE)
    found = resolve({"threads": 8, "model": "m.py:build"}, file_values, CONFIG_FILE)
    assert (found.threads, found.backend, found.model) == (8, "cpp", "m.py:build")
    assert found.max_pairs == RunConfig().max_pairs


SETTINGS = {
    "model": st.sampled_from(("a.py:f", "b.py:g")),
    "backend": st.sampled_from(("auto", "cpp", "triton")),
    "against": st.sampled_from(("compiled", "eager")),
    "top": st.integers(1, 1000),
    "rest": st.sampled_from(("eager", "inductor")),
    "target_speedup": st.floats(0.5, 100),
    "threads": st.integers(0, 64),
    "max_pairs": st.integers(1, 400),
    "alpha": st.floats(1e-6, 0.5),
    "model_processes": st.integers(3, 50),
    "hidden_shapes": st.integers(0, 200),
    "counters": st.sampled_from(("auto", "off")),
    "journal_url": st.just("sqlite:///x"),
    "input": st.sampled_from(((), ("1,512:int64",), ("x=2,3", "y=4:int64"))),
    "input_function": st.just("decode_inputs"),
    "dtype": st.sampled_from(("bf16", "fp32")),
    "device": st.sampled_from(("cpu", "cuda:1")),
    "mode": st.sampled_from(("inference", "train")),
    "download": st.booleans(),
    "hf_cache": st.just("/srv/models"),
    "op": st.sampled_from(("rmsnorm", "softmax")),
    "shape": st.sampled_from(((), ("8192x8192 fp16",))),
    "source": st.just("kernel.cpp"),
    "budget_s": st.floats(1.0, 1e6),
    "problem_s": st.floats(1.0, 1e6),
    "max_evaluations": st.integers(1, 1000),
    "max_device_s": st.floats(1.0, 1e6),
    "max_devices": st.integers(1, 16),
    "max_cost": st.floats(0.01, 1e3),
    "max_tokens": st.integers(1, 1 << 40),
    "problem_evaluations": st.integers(1, 1000),
    "problem_device_s": st.floats(1.0, 1e6),
    "problem_tokens": st.integers(1, 1 << 40),
    "problem_cost": st.floats(0.01, 1e3),
    "max_expansions": st.integers(0, 1000),
    "strategy": st.sampled_from(("greedy", "beam", "mcts", "evolve")),
    "author": st.sampled_from(("auto", "none", "command:./write")),
    "beside": st.sampled_from(((), ("tuner", "command:./other"))),
    "crew": st.integers(1, 16),
    "analyst": st.sampled_from(("llm", "rules")),
    "reflect": st.booleans(),
    "seeds": st.booleans(),
    "drafts": st.integers(1, 16),
    "replays": st.just("2026-01-01-abc"),
    "workers": st.integers(1, 64),
    "seed": st.integers(0, 1 << 40),
    "patience": st.integers(1, 50),
    "escalations": st.integers(0, 5),
    "bold": st.booleans(),
    "near_floor": st.floats(0.1, 1.0),
    "lessons": st.booleans(),
    "knowledge": st.sampled_from(((), ("docs", "house"))),
    "plugins": st.sampled_from(((), ("mine",))),
}


@given(st.fixed_dictionaries({}, optional=SETTINGS), st.fixed_dictionaries({}, optional=SETTINGS))
def test_each_setting_comes_from_the_strongest_source_that_gave_it(flags, file_values):
    found = resolve(flags, file_values, CONFIG_FILE)
    for name in RunConfig.model_fields:
        assert getattr(found, name) == {**RunConfig().model_dump(), **file_values, **flags}[name]


def test_every_setting_is_tried_above_and_has_a_line_of_documentation():
    assert set(SETTINGS) == set(RunConfig.model_fields)
    assert all(field.description for field in RunConfig.model_fields.values())


def test_flag_that_was_not_given_does_not_hide_the_file():
    assert resolve({"threads": None}, {"threads": 3}, CONFIG_FILE).threads == 3


def test_flag_of_zero_or_false_counts_as_given():
    assert resolve({"threads": 0, "hidden_shapes": 0}, {"threads": 3}, CONFIG_FILE).threads == 0


@pytest.mark.parametrize(
    ("key", "near"),
    [("thread", "threads"), ("max_pair", "max_pairs"), ("alhpa", "alpha"), ("x", "max_cost")],
)
def test_unknown_key_in_the_file_names_the_nearest_and_the_known(key, near):
    message = refusal({}, f"{key} = 1\n")
    assert message.startswith(
        f"{CONFIG_FILE}: unknown setting {key!r}. Did you mean {near!r}? Known: model, "
    )
    assert message.endswith("journal_url.")


def test_unknown_flag_is_blamed_on_the_command_line():
    assert refusal({"tread": 1}, "").startswith(
        "command line: unknown setting 'tread'. Did you mean 'threads'?"
    )


def test_unknown_table_is_an_unknown_setting():
    assert "unknown setting 'search'" in refusal({}, "[search]\nalpha = 0.1\n")


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("threads = 4\nbackend = cpp\n", "line 2, column 11"),
        ("threads 4\n", "line 1, column 9"),
        ("threads = 1\nthreads = 2\nalpha = 0.1\n", "line 2, column 12"),
        ("threads = ", "end of document"),
        ('\n\nmodel = "m.py\n', "line 3"),
    ],
)
def test_malformed_file_is_one_line_with_its_place(text, place):
    message = refusal({}, text)
    assert message.startswith(f"{CONFIG_FILE}: not valid TOML: ")
    assert place in message
    assert message.endswith("Mend that line or remove the file.")


@pytest.mark.parametrize(
    ("flags", "text", "source", "key", "value"),
    [
        ({}, 'threads = "many"', CONFIG_FILE, "threads", "'many'"),
        ({}, "threads = -1", CONFIG_FILE, "threads", "-1"),
        ({}, "threads = 1.5", CONFIG_FILE, "threads", "1.5"),
        ({}, "threads = true", CONFIG_FILE, "threads", "True"),
        ({}, "alpha = 2", CONFIG_FILE, "alpha", "2"),
        ({}, "alpha = nan", CONFIG_FILE, "alpha", "nan"),
        ({}, "backend = 5", CONFIG_FILE, "backend", "5"),
        ({}, "[model]\npath = 'm.py'", CONFIG_FILE, "model", "{'path': 'm.py'}"),
        ({"threads": -3}, "threads = 4", "command line", "threads", "-3"),
        ({"max_pairs": 401}, "", "command line", "max_pairs", "401"),
        ({"model_processes": 2}, "alpha = 0.1", "command line", "model_processes", "2"),
    ],
)
def test_value_that_cannot_be_names_the_setting_its_source_and_itself(flags, text, source, key, value):
    message = refusal(flags, text)
    assert message.startswith(f"{source}: setting {key!r}: ")
    assert message.endswith(f"Given was {value}.")


def test_resolved_settings_are_frozen_and_survive_json():
    found = resolve({"threads": 3}, {"alpha": 0.01}, CONFIG_FILE)
    assert RunConfig.model_validate_json(found.model_dump_json()) == found
    with pytest.raises(ValueError, match="frozen"):
        found.threads = 4


def test_list_of_a_file_is_a_setting_that_takes_several() -> None:
    values = parse_toml('shape = ["8x8 fp32", "16x16 fp32"]\n', "kernelwright.toml")
    assert resolve({}, values, "kernelwright.toml").shape == ("8x8 fp32", "16x16 fp32")


def test_a_model_goes_to_the_gpu_unless_somebody_said_otherwise() -> None:
    assert RunConfig(model="m.py:build").on_a_gpu().device == "auto"
    for said in ({"device": "cpu"}, {"backend": "cpp"}, {"op": "softmax"}):
        config = RunConfig.model_validate(said)
        assert config.on_a_gpu() == config
