"""`optimized_kernels/`: the winners as importable modules that need torch alone, beside the files they are made of.

One module per op; each dispatches by shape among its kernels, and checks hash and device before it loads one. The two
files that call kernels are copied along: the package itself is not needed.
"""

import keyword
import re
import tempfile
from collections.abc import Mapping, Sequence
from importlib import metadata
from pathlib import Path

import kernelwright.backends
from kernelwright.core.case import Case
from kernelwright.core.errors import BadInput, BlobMissing
from kernelwright.core.frozen import digest
from kernelwright.core.manifest import FORMAT, NAME, Certificate, Entry, Manifest, StoredFile, StoredUnit
from kernelwright.core.messages.model import Winner
from kernelwright.core.plan import kernel_unit
from kernelwright.core.region import GRAPH
from kernelwright.store.manifest import certified

ARTEFACTS = "artefacts"
CARRIED = ("_bare_launch.py", "_bare_table.py")
PACKAGES = ("torch", "triton", "cuda-bindings")
SUFFIXES = {"cpp": ".cpp", "cuda": ".cu"}
MODULE = '''"""{title}

{facts}
"""

from pathlib import Path

from ._bare_table import Kernels

KERNELS = Kernels(Path(__file__).parent, {name!r})


def call({signature}, reference=None):
    """Return {op} of these inputs; sizes no kernel was certified for go to `reference`, or raise."""
    return KERNELS(({inputs},), ({scalars}), reference)
'''


def write(folder: Path, winners: Sequence[Winner], certificates: Mapping[str, Certificate]) -> Manifest:
    """Write the folder of drop-in modules anew, in one step, and return its manifest.

    Certificates go by problem, or by candidate where it has the same one for all its problems.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f".{folder.name}-") as scratch:
        draft = Path(scratch) / folder.name
        (draft / ARTEFACTS).mkdir(parents=True)
        entries = tuple(_entry(draft, winner, _certificate(winner, certificates)) for winner in winners)
        modules = _modules(entries)
        for name, content in modules.items():
            (draft / name).write_bytes(content)
        manifest = Manifest(
            format=FORMAT,
            kernelwright=metadata.version("kernelwright"),
            versions=_versions(),
            entries=entries,
            modules=tuple(StoredFile(name=name, hash=digest(content)) for name, content in modules.items()),
        )
        (draft / NAME).write_text(manifest.model_dump_json(indent=1) + "\n")
        if folder.exists():
            folder.rename(Path(scratch) / "before")
        draft.rename(folder)
    return manifest


def _modules(entries: Sequence[Entry]) -> dict[str, bytes]:
    """Return the Python files of the folder by name: one per op, and what they are called with."""
    own = Path(kernelwright.backends.__file__).parent
    names = sorted({entry.module for entry in entries})
    listed = "\n".join(f"- {name}" for name in names)
    found = {"__init__.py": f'"""Kernels written by Kernelwright:\n\n{listed}\n"""\n'.encode()}
    found |= {name: (own / name).read_bytes() for name in CARRIED}
    return found | {f"{name}.py": _module(name, entries).encode() for name in names}


def _versions() -> dict[str, str]:
    """Return the versions of the packages that matter, without importing one."""
    found = {}
    for name in PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def _kept(draft: Path, content: bytes, suffix: str) -> StoredFile:
    """Put a file into the folder under its hash."""
    name, content_hash = f"{ARTEFACTS}/{digest(content)[:16]}{suffix}", digest(content)
    (draft / name).write_bytes(content)
    return StoredFile(name=name, hash=content_hash)


def _copied(draft: Path, path: str, content_hash: str, suffix: str) -> StoredFile:
    """Copy a certified file, refusing one that is not what was certified."""
    return _kept(draft, certified(Path(path), content_hash), suffix)


def _certificate(winner: Winner, certificates: Mapping[str, Certificate]) -> Certificate:
    found = certificates.get(winner.problem_hash) or certificates.get(winner.candidate_hash)
    if found is None:
        raise BlobMissing(winner.candidate_hash, f"of {winner.case.label} has no certificate")
    if found.problem:
        raise BadInput(winner.case.label, found.problem, "`kernelwright rejudge` judges it again.")
    return found


def _entry(draft: Path, winner: Winner, certificate: Certificate) -> Entry:
    launches = winner.plan.launches if winner.plan is not None else ()
    library = None
    if winner.plan is None:
        library = _copied(draft, winner.artefact, winner.artefact_hash, ".so")
    source = winner.source.encode()
    region = winner.region.encode()
    return Entry(
        module=module_name(winner.case, winner.region),
        problem_hash=winner.problem_hash,
        candidate_hash=winner.candidate_hash,
        backend=winner.backend,
        case=winner.case,
        values=winner.values,
        source=_kept(draft, source, SUFFIXES.get(winner.backend, ".py")) if source else None,
        library=library,
        plan=winner.plan,
        launched=tuple(kernel_unit(launch, winner.case).hash[:16] for launch in launches),
        units=tuple(
            StoredUnit(
                key=unit.key,
                binary=_copied(draft, unit.binary, unit.binary_hash, Path(unit.binary).suffix or ".cubin"),
                facts=_copied(draft, unit.facts, unit.facts_hash, ".json"),
            )
            for unit in winner.units
        ),
        device=winner.device,
        region=_kept(draft, region, ".txt") if region else None,
        certificate=certificate,
    )


def module_name(case: Case, region: str) -> str:
    """Return the module that serves a case: its op's, or one of its own for a region that has no name."""
    return f"{case.op}_{digest(region)[:8]}" if case.op == GRAPH else case.op


def spelled(name: str) -> str:
    """Return a tensor's name as a parameter: those of a captured region hold characters of their own."""
    plain = re.sub(r"\W", "_", name)
    return f"{plain}_" if keyword.iskeyword(plain) or plain == "reference" or plain[0].isdigit() else plain


def _module(name: str, everything: Sequence[Entry]) -> str:
    entries = [entry for entry in everything if entry.module == name]
    case = entries[0].case
    inputs = [spelled(spec.name) for spec in case.inputs]
    scalars = list(case.scalars)
    defaults = []
    for scalar in scalars:
        values = {entry.case.scalars[scalar] for entry in entries}
        defaults.append(f"{scalar}={values.pop()!r}" if len(values) == 1 else scalar)
    signature = [*inputs, "*", *defaults]
    lines = [_line(entry, entry.certificate) for entry in entries]
    return MODULE.format(
        title=f"{case.op}: kernels for {len(entries)} size{'s' * (len(entries) > 1)}, written by Kernelwright.",
        facts="\n".join(lines),
        name=name,
        op=case.op,
        signature=", ".join(signature),
        inputs=", ".join(inputs),
        scalars="".join(f"{scalar}, " for scalar in scalars),
    )


def _line(entry: Entry, certificate: Certificate) -> str:
    """Return what is known of a kernel, in one line."""
    where = f" on {entry.device.name}" if entry.device else ""
    gain = ""
    if certificate.ratio is not None:
        gain = f": {certificate.ratio:.2f} times as fast as {certificate.baseline or 'the baseline'}"
    if certificate.ci_low is not None and certificate.ci_high is not None:
        gain += f" ({certificate.ci_low:.2f} to {certificate.ci_high:.2f})"
    rules = f"{certificate.status.value} under {certificate.profile.value}, judge {certificate.judge_version}"
    return f"- {entry.case.label}, {entry.backend}{where}{gain}; {rules}"
