"""Inputs and answers of the reference on a CPU: files larger than what one call moves come and go whole."""

import os
import tempfile

import pytest
import torch

from kernelwright.judge import reference


@pytest.fixture(autouse=True)
def _small_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reference, "MOST_AT_ONCE", 7)


def test_what_is_written_in_parts_is_read_whole() -> None:
    values = torch.arange(25, dtype=torch.float64)
    with tempfile.TemporaryFile() as file:
        reference.write_at(file.fileno(), values.view(torch.uint8).numpy(), 3)
        found = torch.frombuffer(reference.read_at(file.fileno(), 200, 3), dtype=torch.float64)
        assert torch.equal(found, values)
        assert os.fstat(file.fileno()).st_size == 203


def test_inputs_that_end_too_early_are_no_inputs() -> None:
    with tempfile.TemporaryFile() as file:
        file.write(b"0123456789")
        file.flush()
        with pytest.raises(EOFError, match="5 bytes too early"):
            reference.read_at(file.fileno(), 10, 5)
