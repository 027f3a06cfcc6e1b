"""Every mistake has one class, and its message names the thing, the value and the next step in one line."""

import inspect
from pathlib import Path

import pytest

from kernelwright.core import errors
from kernelwright.core.errors import KernelwrightError

# Arguments, words the message must hold, and how it must end: with what to do next.
TABLE = {
    "UnknownName": (
        ("op", "matmal", ("softmax", "matmul")),
        ("op", "'matmal'", "'matmul'"),
        "Known: matmul, softmax.",
    ),
    "AmbiguousName": (("ops", "gelu"), ("'gelu'", "'ops'"), "Uninstall one of the packages."),
    "BrokenPlugin": (
        ("ops", "gelu", "No module named 'x'"),
        ("ops/gelu", "'x'"),
        "Mend or uninstall it.",
    ),
    "BadConfig": (
        ("kw.toml", "setting 'threads' is 'many'", "Give a number."),
        ("kw.toml", "'many'"),
        "Give a number.",
    ),
    "BadInput": (
        ("--case", "'big' is no size", "Write '4x64 fp32'."),
        ("--case", "'big'"),
        "Write '4x64 fp32'.",
    ),
    "BadCall": (
        ("status", "wait_s", "should be a number; given was 'long'", "It takes: run, wait_s."),
        ("'status'", "'wait_s'", "'long'"),
        "It takes: run, wait_s.",
    ),
    "NotFound": (
        ("Model file", Path("/m.py"), "Check the path."),
        ("Model file", "'/m.py'"),
        "Check the path.",
    ),
    "NotWritable": (
        ("/srv/run", "permission denied"),
        ("'/srv/run'", "permission denied"),
        "Choose another place with --home or KERNELWRIGHT_HOME.",
    ),
    "DiskFull": (("/run/j.db",), ("'/run/j.db'",), "free some space and run the same command again."),
    "ScratchFull": (
        ("/tmp/judge",),
        ("'/tmp/judge'",),
        "free some space and run the command again, or take the run up with `kernelwright resume`.",
    ),
    "JournalCorrupt": (
        (Path("/run/j.db"), "event 7 does not chain"),
        ("'/run/j.db'", "event 7"),
        "`kernelwright journal verify /run` names the first bad event.",
    ),
    "JournalTooNew": (("/run/j.db", 9, 1), ("'/run/j.db'", "schema 9", "to 1"), "Upgrade kernelwright."),
    "JournalBusy": (("/run/j.db",), ("'/run/j.db'",), "Wait for it or stop it; reading needs no lock."),
    "ShelfUnusable": (
        ("/home/lessons.db", "file is not a database"),
        ("'/home/lessons.db'", "file is not a database"),
        "Move the file away to begin a new one, or pass --no-lessons.",
    ),
    "BlobMissing": (
        ("ab" * 32, "is not in the store"),
        ("abababababab", "is not in the store"),
        "Copy the whole run folder, `blobs` included.",
    ),
    "BackendUnavailable": (
        ("cuda", "nvcc on PATH", "Install the CUDA toolkit."),
        ("'cuda'", "nvcc on PATH"),
        "Install the CUDA toolkit.",
    ),
    "ServiceDied": (("judge", "exit code 9"), ("judge", "exit code 9"), "with --debug and report it."),
    "BadFrame": (("magic b'x'",), ("magic b'x'",), "the channel is closed."),
    "ModelNotLoadable": (
        ("m.py:build", "no such function", "Name a function."),
        ("'m.py:build'", "no such function"),
        "Name a function.",
    ),
    "InputsDoNotFit": (
        ("m.py:build", "forward() takes (tokens)", "Give one --input."),
        ("'m.py:build'", "(tokens)"),
        "Give one --input.",
    ),
    "OutOfMemory": (
        ("m.py:build", "it needs 9.0 GB", "2.0 GB are free on cpu", "The largest batch that fits is 7."),
        ("'m.py:build'", "9.0 GB", "2.0 GB", "cpu"),
        "The largest batch that fits is 7.",
    ),
    "DeviceMissing": (
        ("cuda:3", "1 GPU is visible", "Pass --device cuda:0."),
        ("'cuda:3'", "1 GPU"),
        "Pass --device cuda:0.",
    ),
    "PackageMissing": (
        ("transformers", "'hf:llama'", "hf"),
        ("'transformers'", "'hf:llama'"),
        "pip install 'kernelwright[hf]'.",
    ),
    "NothingToOptimize": (
        ("m.py:build", ("softmax", "matmul")),
        ("'m.py:build'", "matmul, softmax"),
        "`kernelwright ops` lists them.",
    ),
    "TargetOutOfReach": (
        (
            "m.py:build",
            3.0,
            "torch.compile takes 18 ms and the floors add up to 10 ms: 18 / 10 = 1.80",
            1.8049,
        ),
        ("'m.py:build'", "A speed-up of 3 ", "18 / 10 = 1.80"),
        "Ask for --target-speedup 1.8 or less.",
    ),
    "DeviceLost": (
        ("cuda:0 (NVIDIA H200)", "cuInit returned error 100"),
        ("cuda:0 (NVIDIA H200)", "cuInit returned error 100"),
        "when it is back, run the command again, or take the run up with `kernelwright resume`.",
    ),
    "DeviceBusy": (
        ("GPU 0", "process 4711", 30.4),
        ("GPU 0", "process 4711", "waited 30 s"),
        "Wait for it or stop it.",
    ),
    "CalibrationFailed": (
        ("GPU 0", "the clock stood still"),
        ("GPU 0", "the clock stood still"),
        "Free the device and run `kernelwright doctor --calibrate`.",
    ),
    "UnfairClock": (
        ("cpu:0 (a CPU)", 14),
        ("cpu:0 (a CPU)", "14 fresh pairs", "Nothing is kept"),
        "Stop other work on the machine and run again.",
    ),
    "LlmFailed": (("openai", "sulks", "Ask again."), ("'openai'", "sulks"), "Ask again."),
    "LlmKeyMissing": (
        ("openai", "OPENAI_API_KEY", "KEY_FILE"),
        ("'openai'", "needs a key", "OPENAI_API_KEY"),
        "or name a key file in KEY_FILE.",
    ),
    "LlmKeyFileUnsafe": (("/k", "others may use it"), ("'/k'", "others may use it"), "chmod 600 /k"),
    "LlmKeyRefused": (
        ("anthropic", "ANTHROPIC_API_KEY"),
        ("'anthropic'", "refused the key", "ANTHROPIC_API_KEY"),
        "the key must be allowed to use the model.",
    ),
    "LlmUnknownModel": (
        ("openai", "gpt-0"),
        ("'openai'", "'gpt-0'"),
        "Check the id after `llm:` in --author.",
    ),
    "LlmQuotaSpent": (("openai",), ("'openai'", "quota"), "Raise it with the provider, then resume the run."),
    "LlmRateLimited": (
        ("openai", 4, 30.0),
        ("'openai'", "4 times", "30 s"),
        "Try later, or use fewer authors at once.",
    ),
    "LlmUnreachable": (
        ("openai@http://h:1/v1", "connection refused"),
        ("'openai@http://h:1/v1'", "connection refused"),
        "Check the address and the network.",
    ),
    "LlmTimedOut": (
        ("openai", 12.5),
        ("'openai'", "12.5 s"),
        "Allow more with `,timeout=SECONDS` after the model.",
    ),
    "LlmServerFailed": (("openai", 4, "status 500"), ("'openai'", "4 times", "status 500"), "Try later."),
    "LlmContextTooLong": (
        ("openai", "gpt-0"),
        ("'openai'", "'gpt-0'"),
        "Use a model with a longer context.",
    ),
    "LlmRequestRefused": (
        ("openai", "no such field"),
        ("'openai'", "no such field"),
        "Check the options after the model in --author.",
    ),
    "LlmBadReply": (("openai", "no JSON"), ("'openai'", "no JSON"), "Use a more capable model."),
    "LlmCancelled": (("openai",), ("'openai'", "told to stop"), "Nothing is to be done."),
    "LlmNotRecorded": (
        ("openai", "writer", 7, 11),
        ("'openai'", "as writer", "7 of 11 recorded replies"),
        "with the version and the settings that recorded the run.",
    ),
    "ReplayEnded": (("No verdict on 12ab. Replay again.",), ("No verdict on 12ab",), "Replay again."),
    "CannotReplay": (
        ("last", "its texts are gone", "Copy them."),
        ("'last'", "its texts are gone"),
        "Copy them.",
    ),
    "CannotResume": (
        ("last", "its device is gone"),
        ("'last'", "its device is gone"),
        "`kernelwright rejudge last` certifies its winners here, a new run searches on from them.",
    ),
}


def own_classes() -> dict[str, type]:
    return {
        name: kind
        for name, kind in inspect.getmembers(errors, inspect.isclass)
        if kind.__module__ == errors.__name__
    }


def test_every_class_is_a_kernelwright_error_with_a_docstring():
    for name, kind in own_classes().items():
        assert issubclass(kind, KernelwrightError), name
        assert (kind.__doc__ or "").strip().endswith("."), name
    assert not issubclass(KernelwrightError, ValueError | OSError)


def test_every_class_is_in_the_table_of_this_file():
    assert set(TABLE) == set(own_classes()) - {"KernelwrightError"}


@pytest.mark.parametrize("name", TABLE)
def test_message_names_the_value_and_ends_with_the_next_step_in_one_line(name):
    args, words, ending = TABLE[name]
    message = str(own_classes()[name](*args))
    assert [word for word in words if word not in message] == []
    assert message.endswith(ending)
    assert len(message.splitlines()) == 1
    assert ".." not in message


def test_unknown_name_names_the_nearest_only_if_there_is_one():
    near = str(errors.UnknownName("backend", "tritn", ("cuda", "triton")))
    assert near == "Unknown backend 'tritn'. Did you mean 'triton'? Known: cuda, triton."
    far = str(errors.UnknownName("backend", "fortran", ("cuda",)))
    assert far == "Unknown backend 'fortran'. Known: cuda."
    assert str(errors.UnknownName("agent", "x", ())) == "Unknown agent 'x'. Known: none."


def test_one_except_clause_catches_every_class():
    for name, (args, _, _) in TABLE.items():
        with pytest.raises(KernelwrightError):
            raise own_classes()[name](*args)
