"""Authors from outside: a real program behind a pipe, and a folder; whatever goes wrong is a reason."""

import json
import os
import shlex
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from kernelwright.agents import command, scripted
from kernelwright.agents._reply import read_reply
from kernelwright.core import plugins
from kernelwright.core.brief import Answer, Brief, Proposal
from kernelwright.core.candidate import Author, ParamChoice
from kernelwright.core.halt import Halt
from kernelwright.core.normal import key_of

ME = Author(name="test")


@pytest.fixture
def brief(make):
    parent = make.candidate()
    return Brief(
        problem=make.problem(),
        parents=(parent,),
        evaluations=(make.evaluation(parent, make.problem()),),
        time_limit_s=20.0,
    )


def program(tmp_path: Path, code: str) -> command.Command:
    path = tmp_path / "author.py"
    path.write_text(code)
    return command.author(shlex.join([sys.executable, "-S", str(path)]))


def test_drawer_holds_authors_with_a_summary_each():
    assert {"command", "scripted", "tuner"} <= set(plugins.names("agents"))
    for name in ("command", "scripted", "tuner"):
        assert plugins.load("agents", name).SUMMARY


def test_program_reads_the_brief_and_its_proposal_comes_back(tmp_path, brief):
    author = program(
        tmp_path,
        """
import json, sys
brief = json.load(sys.stdin)
source = brief["parents"][0]["source"] + " // " + brief["problem"]["op"]
choices = [{"case_hashes": [], "values": {"BLOCK": 64, "fast": True}}]
print(json.dumps({"proposals": [{"source": source, "backend": "cpp", "note": "try", "choices": choices}]}))
""",
    )
    (proposal,) = author.propose(brief).proposals
    assert proposal.source == "int kernel_fn(); // rmsnorm"
    assert (proposal.backend, proposal.note) == ("cpp", "try")
    assert proposal.choices == (ParamChoice(values={"BLOCK": 64, "fast": True}),)
    assert proposal.author.name == "command"
    candidate = proposal.candidate(brief.problem, [brief.parents[0].hash])
    assert (candidate.op, candidate.parents) == ("rmsnorm", (brief.parents[0].hash,))


def test_program_sees_no_key_of_ours_and_works_in_a_folder_of_its_own(tmp_path, brief, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "secret")
    monkeypatch.setenv("KERNELWRIGHT_HOME", "/somewhere")
    author = program(
        tmp_path,
        """
import json, os, sys
sys.stdin.read()
note = json.dumps([sorted(os.environ), os.getcwd(), os.listdir()])
print(json.dumps({"source": "int a;", "backend": "cpp", "note": note}))
""",
    )
    names, folder, content = json.loads(author.propose(brief).proposals[0].note)
    assert set(names) <= {*command.KEPT, "LC_CTYPE"}  # the last is Python's own doing
    assert folder not in (str(Path.cwd()), str(tmp_path))
    assert content == []
    assert not Path(folder).exists()


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("print('Sure! Here is your kernel:')", "no JSON"),
        ("print('{')", "no JSON"),
        ("print('[' * 100000)", "no JSON"),
        ("print('[1, 2]')", "no proposal"),
        ("print('3')", "no proposal"),
        ("print('{}')", "it has no proposal"),
        ('print(\'{"reason": "no idea"}\')', "no idea"),
        ('print(\'{"proposals": [{"source": "x"}]}\')', "proposals.0.backend: Field required"),
        ('print(\'{"source": "x", "backend": "cpp", "verdict": "accepted"}\')', "verdict: Extra inputs"),
        ('print(\'{"source": 7, "backend": "cpp"}\')', "source: Input should be a valid string"),
        ('print(\'{"source": "\\\\ud800", "backend": "cpp"}\')', "no proposal"),
        ("import sys; sys.stdout.buffer.write(b'\\xff\\xfe')", "no text"),
        ("raise SystemExit(3)", "exit code 3"),
        ("import sys; print('lost my way', file=sys.stderr); raise SystemExit(1)", "lost my way"),
        ("import os; os.kill(os.getpid(), 9)", "exit code -9"),
        ("", "no JSON"),
    ],
)
def test_garbage_is_no_proposal_and_the_reason_says_why(tmp_path, brief, code, words):
    answer = program(tmp_path, code).propose(brief)
    assert answer.proposals == ()
    assert words in answer.reason


def test_program_that_does_not_answer_is_stopped_with_all_it_started(tmp_path, brief):
    mark = tmp_path / "pid"
    author = program(
        tmp_path,
        f"""
import subprocess, sys, time
child = subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(600)"])
open({str(mark)!r}, "w").write(str(child.pid))
time.sleep(600)
""",
    )
    started = time.monotonic()
    answer = author.propose(brief.model_copy(update={"time_limit_s": 0.5}))
    assert time.monotonic() - started < 60
    assert "no answer within 0.5 s" in answer.reason
    child = int(mark.read_text())
    for _ in range(50):
        if not Path(f"/proc/{child}").exists() or " Z " in Path(f"/proc/{child}/stat").read_text():
            break
        time.sleep(0.1)
    else:
        raise AssertionError("what the program started is still running")


SLEEPERS = {
    "sleeps": "",
    "ignores the question to end": "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)",
    "has a grandchild": """
code = "import subprocess, sys; subprocess.Popen([sys.executable, '-S', '-c', sys.argv[1]]).wait()"
subprocess.Popen([sys.executable, "-S", "-c", code, NOTING])
""",
    "has one in a session of its own that ignores it": """
deaf = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); " + NOTING
code = "import os, sys; os.setsid(); os.fork() or os.execv(sys.executable, [sys.executable, '-S', '-c', sys.argv[1]])"
subprocess.Popen([sys.executable, "-S", "-c", code, deaf])
""",
}


def sleeper(tmp_path: Path, before: str) -> tuple[command.Command, Path]:
    """Return an author that sleeps for ten minutes, and the folder in which it and its children leave their numbers."""
    marks = tmp_path / "marks"
    marks.mkdir()
    noting = f"import os, time; open({str(marks)!r} + '/' + str(os.getpid()), 'w'); time.sleep(600)"
    return program(tmp_path, f"import subprocess, sys\nNOTING = {noting!r}\n{before}\nexec(NOTING)\n"), marks


def noted(marks: Path, count: int) -> list[int]:
    """Return the numbers of so many processes, once they are there."""
    until = time.monotonic() + 60
    while len(found := [int(path.name) for path in marks.iterdir()]) < count:
        assert time.monotonic() < until, "the program did not come up"
        time.sleep(0.02)
    return found


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.parametrize("kind", SLEEPERS)
def test_program_that_is_told_to_stop_is_gone_at_once_with_all_it_started(tmp_path, brief, kind):
    author, marks = sleeper(tmp_path, SLEEPERS[kind])
    halt, given = Halt(), list[Answer]()
    asking = threading.Thread(target=lambda: given.append(author.until(halt).propose(brief)))
    asking.start()
    pids = noted(marks, 2 if "has" in kind else 1)
    assert all(map(is_running, pids))
    began = time.monotonic()
    halt.give()
    asking.join(60)
    assert not any(map(is_running, pids)) and time.monotonic() - began < 20
    assert given[0].reason == command.STOPPED
    again = time.monotonic()
    assert author.until(halt).propose(brief).reason == command.STOPPED, "the word was given before"
    assert time.monotonic() - again < 20 and len(list(marks.iterdir())) == len(pids)


def test_program_does_not_outlive_a_killed_run(tmp_path, brief):
    author, marks = sleeper(tmp_path, SLEEPERS["has one in a session of its own that ignores it"])
    code = (
        "import sys; from kernelwright.agents import command; from kernelwright.core.brief import Brief; "
        "command.author(sys.argv[1]).propose(Brief.model_validate_json(sys.stdin.buffer.read()))"
    )
    asking = subprocess.Popen([sys.executable, "-c", code, shlex.join(author.words)], stdin=subprocess.PIPE)
    assert asking.stdin
    asking.stdin.write(brief.model_dump_json().encode())
    asking.stdin.close()
    pids = noted(marks, 2)
    asking.kill()
    asking.wait()
    until = time.monotonic() + 20
    while any(map(is_running, pids)):
        assert time.monotonic() < until
        time.sleep(0.02)


def test_answer_counts_though_something_was_left_running(tmp_path, brief):
    marks = tmp_path / "left"
    author = program(
        tmp_path,
        f"""
import subprocess, sys
left = subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(600)"])
open({str(marks)!r}, "w").write(str(left.pid))
print('{{"source": "int a;", "backend": "cpp"}}')
""",
    )
    began = time.monotonic()
    assert [one.source for one in author.propose(brief).proposals] == ["int a;"]
    assert time.monotonic() - began < 60 and not is_running(int(marks.read_text()))


def test_program_that_never_stops_writing_is_stopped(tmp_path, brief):
    author = program(tmp_path, "while True: print('x' * 100000)")
    assert "wrote more than" in author.propose(brief).reason


def test_program_that_does_not_read_its_brief_may_still_answer(tmp_path, brief):
    big = brief.model_copy(update={"contract": "x" * (1 << 20)})
    author = program(tmp_path, """print('{"source": "int a;", "backend": "cpp"}')""")
    assert [one.source for one in author.propose(big).proposals] == ["int a;"]


def test_large_brief_and_large_answer_pass_without_waiting_for_each_other(tmp_path, brief):
    big = brief.model_copy(update={"contract": "x" * (1 << 20)})
    author = program(
        tmp_path,
        """
import json, sys
print(" " * (1 << 20))
given = json.load(sys.stdin)
print(json.dumps({"source": given["contract"][:500000], "backend": "cpp"}))
""",
    )
    assert len(author.propose(big).proposals[0].source) == 500000


def test_missing_program_and_missing_command_are_reasons(brief):
    assert (
        command.author("no-such-program-here").propose(brief).reason
        == "there is no program 'no-such-program-here'"
    )
    assert "no command was given" in command.author("").propose(brief).reason


def test_program_that_cannot_be_started_is_a_reason(tmp_path, brief):
    path = tmp_path / "broken"
    path.write_bytes(b"\x7fELF nonsense")
    os.chmod(path, 0o755)  # noqa: PTH101
    assert "cannot be started" in command.author(str(path)).propose(brief).reason


def test_author_cannot_name_itself():
    answer = read_reply('{"source": "a", "backend": "cpp", "author": {"name": "seed"}}', ME)
    assert answer.proposals == ()
    assert "author" in answer.reason


def test_answer_without_proposal_or_reason_cannot_be_built():
    with pytest.raises(ValueError, match="must say why"):
        Answer()


def test_proposal_without_a_rule_for_unseen_shapes_cannot_be_built():
    choices = (ParamChoice(case_hashes=("c",), values={}),)
    with pytest.raises(ValueError, match="unseen shapes"):
        Proposal(source="a", backend="cpp", author=ME, choices=choices)


def test_proposal_without_choices_takes_the_first_values_of_its_parameters(make):
    source = '/*kernelwright\nPARAMS = {"B": [64, 32]}\n*/'
    found = Proposal(source=source, backend="cpp", author=ME).candidate(make.problem())
    assert found.choices == (ParamChoice(values={"B": 64}),)
    broken = Proposal(source="/*kernelwright\nPARAMS = 3\n*/", backend="cpp", author=ME)
    assert broken.candidate(make.problem()).choices == (ParamChoice(),)


def test_scripted_gives_each_proposal_once_in_order(brief):
    wanted = [Proposal(source=f"int {name};", backend="cpp", author=ME) for name in "abc"]
    author, known, given = scripted.Scripted(wanted), [], []
    for _ in range(4):
        answer = author.propose(brief.model_copy(update={"known": tuple(known)}))
        given += answer.proposals
        known += [key_of(one.candidate(brief.problem)) for one in answer.proposals]
    assert given == wanted
    assert answer.reason == "all 3 proposals were given"


def test_folder_gives_its_files_by_name_those_of_the_op_first(tmp_path, brief):
    (tmp_path / "rmsnorm").mkdir()
    (tmp_path / "softmax").mkdir()
    (tmp_path / "rmsnorm" / "z.cpp").write_text("int z;")
    (tmp_path / "softmax" / "a.cpp").write_text("int wrong_op;")
    (tmp_path / "b.cu").write_text("int b;")
    (tmp_path / "c.py").write_text("def plan(case, params, device): ...")
    (tmp_path / "d.py").write_text("def kernel_fn(x): ...")
    (tmp_path / "e.json").write_text('{"source": "int e;", "backend": "cpp"}')
    (tmp_path / "f.json").write_text("garbage")
    (tmp_path / "g.txt").write_text("words")
    author, known, given = scripted.author(str(tmp_path)), [], []
    for _ in range(6):
        answer = author.propose(brief.model_copy(update={"known": tuple(known)}))
        for one in answer.proposals:
            given.append((one.author.detail, one.backend))
            known.append(key_of(one.candidate(brief.problem)))
    assert given == [
        ("z.cpp", "cpp"),
        ("b.cu", "cuda"),
        ("c.py", "triton"),
        ("d.py", "python"),
        ("e.json", "cpp"),
    ]
    assert "f.json: the answer is no JSON" in answer.reason
    assert "g.txt: no language" in answer.reason


def test_folder_that_does_not_exist_has_nothing_to_give(tmp_path, brief):
    assert scripted.author(str(tmp_path / "nowhere")).propose(brief).reason == "all 0 proposals were given"
