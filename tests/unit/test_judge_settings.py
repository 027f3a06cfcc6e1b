"""What is for tests only stays out of everybody's reach."""

from pathlib import Path

import kernelwright
from kernelwright.core.messages.judge import JudgeSettings

TESTS_ONLY = ("guards_off", "audit_off")


def test_guards_and_audit_are_on_unless_a_test_turns_them_off() -> None:
    fields = JudgeSettings.model_fields
    assert [fields[name].default for name in TESTS_ONLY] == [False, False]


def test_no_flag_and_no_setting_of_a_user_turns_them_off() -> None:
    house = Path(kernelwright.__file__).parent
    paths = [house / "core" / "config.py", *house.glob("cli/**/*.py"), *house.glob("engine/**/*.py")]
    assert len(paths) > 50
    assert [path for path in paths if any(name in path.read_text() for name in TESTS_ONLY)] == []
