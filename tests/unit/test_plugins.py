"""Drawers: the file's name is its registration, third parties come by entry point, nothing heavy loads for a list."""

import ast
import os
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

import kernelwright
from kernelwright.core import plugins
from kernelwright.core.environment import child_environment
from kernelwright.core.errors import AmbiguousName, BrokenPlugin, NotFound, UnknownName
from kernelwright.engine.seeds import seed_file

ROOT = Path(kernelwright.__file__).parent
HEAVY = ("torch", "triton", "cuda", "numpy")
LISTING = f"""
from kernelwright.core import plugins
answer = {{"names": {{drawer: plugins.names(drawer) for drawer in plugins.DRAWERS}}}}
answer["heavy_by_names"] = [name for name in {HEAVY} if name in sys.modules]
answer["loaded_by_names"] = [n for n in sys.modules if n.startswith(("kernelwright.ops.", "kernelwright.backends."))]
for drawer in ("ops", "backends"):
    for name in answer["names"][drawer]:
        plugins.load(drawer, name)
answer["heavy_by_load"] = [name for name in {HEAVY} if name in sys.modules]
"""


@pytest.fixture(scope="module")
def listing(fresh_python):
    return fresh_python(LISTING, {})


def files(drawer: str) -> list[str]:
    found = [path.stem for path in (ROOT / drawer).glob("*.py")]
    return sorted(name for name in found if not name.startswith("_"))


@pytest.fixture
def install(tmp_path, monkeypatch):
    """Return a function that installs a distribution with entry points and modules into a folder on the path."""

    def make(distribution: str, group: str, entries: dict[str, str], **modules: str) -> None:
        info = tmp_path / f"{distribution}-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: 1.0\n")
        lines = [f"[{group}]", *(f"{name} = {value}" for name, value in entries.items())]
        (info / "entry_points.txt").write_text("\n".join(lines) + "\n")
        for name, text in modules.items():
            (tmp_path / f"{name}.py").write_text(text)
        monkeypatch.syspath_prepend(tmp_path)
        plugins.load.cache_clear()

    yield make
    plugins.load.cache_clear()


@pytest.mark.parametrize("drawer", plugins.DRAWERS)
def test_every_file_of_a_drawer_is_a_name_and_shared_files_are_not(listing, drawer):
    assert listing["names"][drawer] == files(drawer)
    assert not [name for name in listing["names"][drawer] if name.startswith("_")]


def test_ops_and_backends_are_not_empty(listing):
    assert {"matmul", "rmsnorm", "softmax"} <= set(listing["names"]["ops"])
    assert {"cpp", "eager", "triton"} <= set(listing["names"]["backends"])


def test_names_are_listed_without_loading_anything_heavy_or_any_of_the_named(listing):
    assert listing["heavy_by_names"] == []
    assert listing["loaded_by_names"] == []


def test_loading_every_op_and_backend_leaves_torch_and_triton_out(listing):
    assert listing["heavy_by_load"] == []


def test_loaded_op_offers_its_port():
    op = plugins.load("ops", "rmsnorm")
    assert op.__name__ == "kernelwright.ops.rmsnorm"
    assert op.public_cases()[0].op == "rmsnorm"


def test_unknown_name_is_answered_with_the_nearest_and_the_known():
    with pytest.raises(UnknownName) as raised:
        plugins.load("ops", "rmsnrm")
    message = str(raised.value)
    assert message.startswith("Unknown op 'rmsnrm'. Did you mean 'rmsnorm'? Known: ")
    assert message.endswith(f"{', '.join(files('ops'))}.")


@pytest.mark.parametrize("name", ["", ".", "rmsnorm.case", "../core/case", "_draw", "__init__", "os"])
def test_name_that_is_no_plain_name_is_unknown(name):
    with pytest.raises(UnknownName, match="Unknown op"):
        plugins.load("ops", name)


@pytest.mark.parametrize("call", [plugins.names, lambda drawer: plugins.load(drawer, "matmul")])
def test_unknown_drawer_is_answered_with_the_known(call):
    with pytest.raises(UnknownName, match=r"Unknown drawer 'op'\. Did you mean 'ops'\?"):
        call("op")


@pytest.mark.parametrize("drawer", ["core", "judge", "store"])
def test_room_is_no_drawer(drawer):
    with pytest.raises(UnknownName, match="Unknown drawer"):
        plugins.names(drawer)


def test_entry_point_of_a_third_party_is_found_and_loaded_only_when_asked_for(install):
    install("kw_gelu", "kernelwright.ops", {"gelu": "kw_gelu_op"}, kw_gelu_op="SUMMARY = 'a third party'")
    assert "gelu" in plugins.names("ops")
    assert set(plugins.names("ops")) - {"gelu"} == set(files("ops"))
    assert plugins.load("ops", "gelu").SUMMARY == "a third party"


def test_entry_point_fills_a_drawer_that_has_no_files_yet(install):
    install("kw_hill", "kernelwright.strategies", {"hill": "kw_hill"}, kw_hill="NAME = 'hill'")
    assert plugins.names("strategies") == sorted([*files("strategies"), "hill"])
    assert plugins.load("strategies", "hill").NAME == "hill"


def test_entry_point_of_another_drawer_is_not_found(install):
    install("kw_gelu", "kernelwright.backends", {"gelu": "kw_gelu_op"}, kw_gelu_op="")
    assert "gelu" not in plugins.names("ops")


def test_two_distributions_with_the_same_name_are_ambiguous(install):
    install("kw_one", "kernelwright.ops", {"gelu": "kw_one"}, kw_one="")
    install("kw_two", "kernelwright.ops", {"gelu": "kw_two"}, kw_two="")
    with pytest.raises(AmbiguousName, match="'gelu' is registered more than once in 'ops'"):
        plugins.names("ops")


def test_third_party_cannot_replace_one_of_our_own(install):
    install("kw_evil", "kernelwright.ops", {"rmsnorm": "kw_evil"}, kw_evil="raise SystemExit")
    with pytest.raises(AmbiguousName, match="'rmsnorm'"):
        plugins.load("ops", "rmsnorm")


def test_same_distribution_seen_twice_on_the_path_is_not_ambiguous(monkeypatch):
    point = EntryPoint("gelu", "kw_gelu_op", "kernelwright.ops")
    monkeypatch.setattr(plugins, "entry_points", lambda group: [point, point] if "ops" in group else [])
    assert "gelu" in plugins.names("ops")


@pytest.mark.parametrize(
    ("value", "text", "words"),
    [
        ("kw_missing_module", "", "No module named 'kw_missing_module'"),
        ("kw_broken_a", "import kw_nowhere", "No module named 'kw_nowhere'"),
        ("kw_broken_b", "from math import nothing", "cannot import name 'nothing'"),
        ("kw_broken_c:SUMMARY", "SUMMARY = 'x'", "its entry point is a str, not a module"),
        ("kw_broken_d:missing", "", "missing"),
        ("kw_broken_e", "def f(:", "invalid syntax"),
    ],
    ids=["missing module", "missing import", "missing name", "no module", "no attribute", "syntax"],
)
def test_third_party_that_cannot_be_loaded_is_a_broken_plugin(install, value, text, words):
    module = value.split(":")[0]
    sources = {} if "missing_module" in module else {module: text}
    install("kw_broken", "kernelwright.ops", {"gelu": value}, **sources)
    with pytest.raises(BrokenPlugin) as raised:
        plugins.load("ops", "gelu")
    assert str(raised.value).startswith("ops/gelu cannot be imported: ")
    assert words in str(raised.value)


@pytest.mark.parametrize("drawer", ["ops", "backends"])
def test_files_of_a_drawer_import_nothing_heavy_at_the_top(drawer):
    guilty = []
    for path in (ROOT / drawer).glob("*.py"):
        for node in ast.parse(path.read_text()).body:
            modules = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            modules += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            guilty += [f"{path.name}: {name}" for name in modules if name.split(".")[0] in HEAVY]
    assert guilty == []


@pytest.fixture
def folder(tmp_path):
    """Return a user's own folder with a backend and a seed in it."""
    (tmp_path / "backends").mkdir()
    (tmp_path / "backends" / "mine.py").write_text('EXTENSION = ".mine"\nSUMMARY = "my own"\n')
    (tmp_path / "backends" / "_shared.py").write_text("")
    (tmp_path / "seeds" / "softmax").mkdir(parents=True)
    (tmp_path / "seeds" / "softmax" / "mine.mine").write_text("seed")
    return tmp_path


def test_a_folder_of_the_users_own_adds_to_the_drawers_while_it_is_in_use(folder):
    before = plugins.names("backends")
    with plugins.using([str(folder)]):
        assert plugins.names("backends") == sorted([*before, "mine"])
        assert plugins.load("backends", "mine").SUMMARY == "my own"
        assert plugins.language_of(".mine") == "mine"
        assert seed_file("softmax", "mine") == folder / "seeds" / "softmax" / "mine.mine"
    assert plugins.names("backends") == before
    assert plugins.language_of(".mine") is None
    with pytest.raises(UnknownName):
        plugins.load("backends", "mine")


def test_a_folder_with_a_taken_name_a_broken_file_or_none_at_all_is_refused(folder):
    (folder / "backends" / "cpp.py").write_text("")
    with plugins.using([str(folder)]), pytest.raises(AmbiguousName):
        plugins.names("backends")
    (folder / "backends" / "cpp.py").unlink()
    (folder / "backends" / "mine.py").write_text("import nothing_of_the_kind")
    with plugins.using([str(folder)]), pytest.raises(BrokenPlugin, match="nothing_of_the_kind"):
        plugins.load("backends", "mine")
    with pytest.raises(NotFound, match="Plugin folder"), plugins.using([str(folder / "missing")]):
        pass


def test_every_process_of_a_run_is_told_of_the_folder(folder):
    with plugins.using([str(folder)]):
        told = child_environment(os.environ, ROOT.parent, folder, 1)
    assert plugins.folders(told) == [folder.resolve()]
    assert plugins.folders({}) == []
