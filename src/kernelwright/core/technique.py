"""`Technique`: one card of the playbook, and how cards are chosen by what a problem is."""

import re
from collections.abc import Iterable
from enum import IntEnum, StrEnum

from pydantic import Field, model_validator

from kernelwright.core.frozen import Frozen, Noun


class Tier(IntEnum):
    """How deep a technique reaches; lower tiers are tried first."""

    BLOCK_SIZES = 1
    """How much work one block, warp or thread takes."""
    MEMORY_ACCESS = 2
    """How bytes come and go."""
    COMPUTE = 3
    """Which instructions do the arithmetic, and how many."""
    ADVANCED = 4
    """How a kernel is organised as a whole."""
    ARCHITECTURE = 5
    """What one family of hardware offers and asks for."""
    KERNEL_SPECIFIC = 6
    """What one op allows."""


class Bottleneck(StrEnum):
    """What a kernel waits for."""

    MEMORY_BANDWIDTH = "memory bandwidth"
    """More bytes cross the memory bus than the problem needs, or all that it needs already do."""
    MEMORY_LATENCY = "memory latency"
    """Loads are used as soon as they are issued; the bus is idle in between."""
    COMPUTE = "compute"
    """The arithmetic units are busy all the time."""
    TENSOR_CORE_IDLE = "tensor-core idle"
    """The matrix units wait for operands, or are not used at all."""
    OCCUPANCY = "occupancy"
    """Too few warps fit on a multiprocessor to hide each other's waits."""
    LAUNCH_OVERHEAD = "launch overhead"
    """Starting kernels takes a good part of the time."""
    BANK_CONFLICTS = "bank conflicts"
    """Lanes of a warp ask one bank of shared memory for different words."""
    UNCOALESCED_ACCESS = "uncoalesced access"
    """A warp's addresses fall into more sectors or lines than its bytes need."""
    SPILLS = "spills"
    """Values that do not fit the registers go to memory and back."""
    TAIL_EFFECT = "tail effect"
    """A few last blocks run while most of the device is idle."""
    INSTRUCTION_OVERHEAD = "instruction overhead"
    """Addresses, masks, conversions and loop counters take the issue slots."""
    SPECIAL_FUNCTIONS = "special functions"
    """Exponentials, roots and divisions limit the rate."""
    SYNCHRONISATION = "synchronisation"
    """Threads wait for each other at barriers or atomics."""
    CACHE_MISSES = "cache misses"
    """What is read again has left the cache."""
    THREAD_IMBALANCE = "thread imbalance"
    """Some threads or programs have more to do than others."""


class Language(StrEnum):
    """What a card's code is written in; Gluon is a dialect of the backend `triton`."""

    TRITON = "triton"
    """Triton."""
    GLUON = "gluon"
    """Gluon: Triton with its layouts spelled out."""
    CUDA = "cuda"
    """CUDA C++."""
    CPP = "cpp"
    """C++ on the host's cores."""


class Architecture(StrEnum):
    """Families of hardware a card may be about."""

    AMPERE = "ampere"
    """NVIDIA sm_80, sm_86 and sm_87."""
    ADA = "ada"
    """NVIDIA sm_89."""
    HOPPER = "hopper"
    """NVIDIA sm_90."""
    BLACKWELL = "blackwell"
    """NVIDIA sm_100, sm_103 and sm_120."""
    CDNA3 = "cdna3"
    """AMD gfx942."""
    X86 = "x86"
    """x86-64 processors."""


TARGETS = {
    **dict.fromkeys(("sm_80", "sm_86", "sm_87"), Architecture.AMPERE),
    "sm_89": Architecture.ADA,
    "sm_90": Architecture.HOPPER,
    **dict.fromkeys(("sm_100", "sm_103", "sm_120"), Architecture.BLACKWELL),
    "gfx942": Architecture.CDNA3,
    "x86_64": Architecture.X86,
}
"""Compilers' targets to families."""


SPOKEN = {Architecture.X86: (Language.CPP,), Architecture.CDNA3: (Language.TRITON, Language.GLUON)}
"""Languages of the families that are not NVIDIA's."""


def architecture_of(target: str) -> Architecture | None:
    """Return the family of a device's `arch`, or of a family's own name; None for one no card is about."""
    if target in set(Architecture):
        return Architecture(target)
    return TARGETS.get(target)


class Basis(StrEnum):
    """What a gain rests on."""

    MEASURED = "measured"
    """Timed by this project; the source says where, on what and against what."""
    EXPECTED = "expected"
    """Not measured here; the source says what the expectation rests on."""


class Gain(Frozen):
    """How much faster the kernel becomes where the technique applies."""

    low: float = Field(gt=0)
    """Least factor; below 1 where it may also cost."""
    high: float = Field(gt=0)
    """Largest factor."""
    basis: Basis
    """Whether the factors were measured here."""
    source: str = Field(min_length=10)
    """Device, sizes and numbers of a measurement; else what the expectation rests on."""

    @model_validator(mode="after")
    def _ordered(self) -> "Gain":
        if self.low > self.high:
            raise ValueError(f"low {self.low:g} exceeds high {self.high:g}")
        return self

    @property
    def factors(self) -> str:
        """Return the factors for a table."""
        return f"{self.low:.3g}x" if self.low == self.high else f"{self.low:.3g} to {self.high:.3g}x"

    @property
    def text(self) -> str:
        """Return the factors with what they rest on, in one line."""
        basis = "measured" if self.basis is Basis.MEASURED else "expected, not measured here"
        return f"{self.factors} ({basis}): {self.source}"


class Example(Frozen):
    """One code block of a card."""

    language: str
    """Word after the fence: python, cuda or cpp."""
    case: str
    """What a whole source is built for, such as `softmax 4096x4096 fp16 sm_90`; empty for a fragment."""
    code: str
    """The block's lines."""


HEADINGS = ("What to do", "Example", "Traps", "How to see that it worked")
"""The sections of every card, in this order."""
BLOCK = re.compile(r"^```(\w+)[ \t]*([^\n]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


class Technique(Noun):
    """One card of the playbook."""

    name: str = Field(pattern=r"^[a-z][a-z0-9_]*$")
    """File name without its extension."""
    tier: Tier
    """How deep it reaches."""
    title: str = Field(min_length=3, max_length=80)
    """What is done, in a few words."""
    bottlenecks: tuple[Bottleneck, ...] = Field(min_length=1)
    """What it helps against."""
    backends: tuple[Language, ...]
    """Languages it can be written in; empty means every one."""
    ops: tuple[str, ...]
    """Kernel types it is for; empty means every one."""
    archs: tuple[Architecture, ...]
    """Hardware it is for; empty means all."""
    gain: Gain
    """What to expect of it."""
    move: str | None
    """The mechanical rewrite that does it, if there is one."""
    body: str
    """Markdown under the headings of `HEADINGS`."""

    def section(self, heading: str) -> str:
        """Return the text under one of `HEADINGS`."""
        lines, inside, fenced = [], False, False
        for line in self.body.splitlines():
            fenced ^= line.startswith("```")
            if line.startswith("## ") and not fenced:
                inside = line[3:].strip() == heading
            elif inside:
                lines.append(line)
        return "\n".join(lines).strip()

    @property
    def markdown(self) -> str:
        """Return the whole card as a text for a person or an llm."""
        facts = {
            "tier": f"{int(self.tier)}, {self.tier.name.lower().replace('_', ' ')}",
            "against": ", ".join(self.bottlenecks),
            "backends": ", ".join(self.backends) or "any",
            "ops": ", ".join(self.ops) or "any",
            "hardware": ", ".join(self.archs) or "any",
            "gain": self.gain.text,
            "move": self.move or "none",
        }
        lines = "\n".join(f"- {name}: {value}" for name, value in facts.items())
        return f"# {self.title} ({self.name})\n\n{lines}\n\n{self.body}"

    @property
    def examples(self) -> tuple[Example, ...]:
        """Return the code blocks, in order."""
        found = BLOCK.findall(self.body)
        return tuple(Example(language=word, case=case.strip(), code=code) for word, case, code in found)


class Wanted(Frozen):
    """What cards are asked for: by a person, or for a problem on its device; None asks nothing."""

    tier: Tier | None = None
    """This tier alone."""
    backend: Language | None = None
    """Cards this language can express."""
    op: str | None = None
    """Cards that serve this kernel type."""
    arch: Architecture | None = None
    """Cards for this hardware."""
    bottlenecks: tuple[Bottleneck, ...] = ()
    """Cards that help against one of these, the most pressing first; none asks nothing."""

    def admits(self, card: Technique) -> bool:
        """Tell whether a card is asked for."""
        return (
            self.tier in (None, card.tier)
            and (self.backend is None or not card.backends or self.backend in card.backends)
            and (self.op is None or not card.ops or self.op in card.ops)
            and (self.arch is None or self._runs(card, self.arch))
            and (not self.bottlenecks or any(one in card.bottlenecks for one in self.bottlenecks))
        )

    @staticmethod
    def _runs(card: Technique, arch: Architecture) -> bool:
        """Tell whether a card is for an architecture and can be written in a language it understands."""
        spoken = SPOKEN.get(arch, (Language.TRITON, Language.GLUON, Language.CUDA))
        is_written = not card.backends or any(language in spoken for language in card.backends)
        return is_written and (not card.archs or arch in card.archs)


def chosen(cards: Iterable[Technique], wanted: Wanted) -> list[Technique]:
    """Return the cards asked for: those against the most pressing bottleneck first, then by tier and name."""

    def place(card: Technique) -> tuple[int, int, str]:
        against = (number for number, one in enumerate(wanted.bottlenecks) if one in card.bottlenecks)
        return next(against, 0), card.tier, card.name

    return sorted((card for card in cards if wanted.admits(card)), key=place)
