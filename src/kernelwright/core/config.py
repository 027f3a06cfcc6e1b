"""`RunConfig`: every setting of a run in one place. Flags beat `kernelwright.toml`, which beats these defaults."""

import re
import tomllib
from collections.abc import Mapping
from difflib import get_close_matches
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, ValidationError

from kernelwright.core.account import Against
from kernelwright.core.errors import BadConfig
from kernelwright.core.frozen import Frozen
from kernelwright.core.model_spec import AUTO_DEVICE, Mode, ModelMode, ModelOptions, Precision, parse_input

CONFIG_FILE = "kernelwright.toml"
Rest = Literal["eager", "inductor"]


def _against_named(name: object) -> object:
    if isinstance(name, str) and name not in list(Against):
        raise ValueError(f"{name!r} is no baseline; known: {', '.join(Against)}")
    return Against(name) if isinstance(name, str) else name


UNITS = {"h": 3600.0, "m": 60.0, "s": 1.0}
TIME = re.compile("".join(rf"(?:(\d+(?:\.\d+)?){unit})?" for unit in UNITS))


def _seconds(text: object) -> object:
    """Return seconds of a text such as `90s`, `10m`, `1h30m` or `8h`; a number is seconds already."""
    if not isinstance(text, str):
        return float(text) if isinstance(text, int) and not isinstance(text, bool) else text
    if text and (found := TIME.fullmatch(text)):
        return sum(
            float(part or 0) * scale for part, scale in zip(found.groups(), UNITS.values(), strict=True)
        )
    try:
        return float(text)
    except ValueError:
        raise ValueError(f"{text!r} is no time; write 90s, 10m, 1h30m or 8h") from None


Seconds = Annotated[float, BeforeValidator(_seconds)]


class RunConfig(Frozen):
    """Settings of a run; the resolved value is event zero of the journal."""

    model: str | None = None
    """Model to optimise: `path.py:factory`, `package.module:Class` or `hf:NAME-or-folder`."""
    op: str | None = None
    """A kernel type to optimise by itself, instead of a model."""
    shape: tuple[str, ...] = Field(default=(), strict=False)
    """Sizes of that kernel, such as `8192x8192 fp16`; none takes a usual one."""
    source: str | None = None
    """C++ or CUDA file of that kernel to begin with and to beat; only its marked regions may change."""
    input: tuple[str, ...] = Field(default=(), strict=False)
    """Inputs by shape, such as `1,512:int64`; none means the model's file makes them."""
    input_function: str | None = None
    """Function of the model's file that makes the inputs; None means `sample_inputs`."""
    dtype: Precision = None
    """Element type of the weights; None leaves them as built."""
    device: str | None = None
    """Where the model runs: `cpu`, `cuda`, `cuda:1`, `auto` (the GPU if there is one); None for where it was built."""
    mode: Mode = ModelMode.INFERENCE
    """How the model is called: `inference`, `eval` (gradients recorded) or `train`."""
    download: bool = False
    """Whether a model of the Hugging Face hub that is not on this disk may be fetched."""
    hf_cache: str | None = None
    """Folder of models fetched from the hub; None means `.cache/huggingface/hub` in the user's home."""
    backend: str = "auto"
    """Language of the candidates; `auto` takes every one a run can use."""
    against: Annotated[Against, BeforeValidator(_against_named)] = Against.COMPILED
    """The way of running the model that regions are ranked against: `compiled` or `eager`."""
    top: int = Field(default=5, ge=1, le=1000)
    """Regions worked on at most, those with the most end-to-end time to win first."""
    target_speedup: float | None = Field(default=None, gt=0, strict=False)
    """Speed-up over that baseline that is asked for; a run is refused if the device's floors exclude it."""
    rest: Rest | None = None
    """Who runs the rest of the model beside the winners: `eager` operation by operation, `inductor` compiled; None
    takes the one that `against` is run by."""
    budget_s: Seconds = Field(default=600.0, gt=0)
    """Wall-clock time of the whole run: `90s`, `10m`, `8h` or seconds; a part of it is left for finishing."""
    problem_s: Seconds = Field(default=7200.0, gt=0)
    """Time after which the search of one problem ends."""
    problem_evaluations: int | None = Field(default=None, ge=1)
    """Verdicts after which the search of one problem ends; None for as many as the run allows."""
    problem_device_s: Annotated[float | None, BeforeValidator(_seconds)] = Field(default=None, gt=0)
    """Seconds of judging after which the search of one problem ends; None for as many as the run allows."""
    problem_tokens: int | None = Field(default=None, ge=1)
    """Tokens of language models after which the search of one problem ends; None for as many as the run allows."""
    problem_cost: float | None = Field(default=None, gt=0, strict=False)
    """Dollars for language models after which the search of one problem ends; None for as many as the run allows."""
    max_evaluations: int | None = Field(default=None, ge=1)
    """Verdicts the search may ask for; None for as many as the time allows."""
    max_device_s: Annotated[float | None, BeforeValidator(_seconds)] = Field(default=None, gt=0)
    """Seconds of judging the search may spend: verdicts, comparisons and looks; None for as many as the time allows."""
    max_tokens: int | None = Field(default=None, ge=1)
    """Tokens of prompts and answers the search may spend; None for as many as it takes."""
    max_cost: float | None = Field(default=None, gt=0, strict=False)
    """Dollars the search may spend on language models; None for as many as it takes."""
    max_expansions: int = Field(default=1000, ge=0)
    """Expansions a problem may ask for; 0 judges the seeds alone."""
    strategy: str = "mcts"
    """How the search chooses what to expand, a file of `strategies/`."""
    author: str = "auto"
    """Who proposes candidates, a file of `agents/`, with what follows a colon handed to it."""
    beside: tuple[str, ...] = Field(default=(), strict=False)
    """Further authors, at work at the same time and sharing what they conclude."""
    crew: int | None = Field(default=None, ge=1, le=16)
    """Authors at work at once; None takes as many as are named, and two where one llm is."""
    analyst: Literal["llm", "rules"] = "llm"
    """Who says what a kernel waits for where an llm writes: that llm, held to what was measured, or the rules alone."""
    reflect: bool = True
    """Whether an llm looks back on every attempt of its own, for the memory it shares with the crew."""
    seeds: bool = True
    """Whether the package's own kernels are judged first; without them authors begin with the reference alone."""
    drafts: int = Field(default=4, ge=1, le=16)
    """First kernels asked for at once where there is none: the first one certified ends the others."""
    workers: int = Field(default=2, ge=1, le=64)
    """Expansions asked for at once: they are built together and raced together."""
    seed: int = Field(default=0, ge=0)
    """Source of whatever the search draws."""
    patience: int = Field(default=5, ge=1)
    """Candidates in a row that are not kept before the search of a problem is escalated, and at last given up."""
    escalations: int = Field(default=3, ge=0)
    """Turns to other means before a problem is given up: bolder proposals, another strategy, another language."""
    bold: bool = True
    """Whether bolder proposals are two steps at once of authors without a key; otherwise only llms are told."""
    near_floor: float = Field(default=0.97, gt=0, le=1)
    """Share of the floor at which a problem counts as done."""
    max_devices: int | None = Field(default=None, ge=1)
    """Equal GPUs on which candidates are judged side by side; None takes all there are."""
    threads: int = Field(default=0, ge=0)
    """CPU threads of a judged kernel; 0 means all of the machine's cores."""
    max_pairs: int = Field(default=60, ge=1, le=400)
    """Fresh process pairs after which a comparison ends as not proven."""
    alpha: float = Field(default=0.001, gt=0, lt=1)
    """Probability of keeping a candidate that is not faster."""
    model_processes: int = Field(default=5, ge=3, le=50)
    """Fresh processes in which the whole model is timed with and without the winners."""
    counters: Literal["auto", "off"] = "auto"
    """Whether parents are put under a profiler for the diagnosis: `auto` where counters can be read; `off`."""
    hidden_shapes: int = Field(default=8, ge=0, le=200)
    """Random legal shapes drawn for each evaluation, unknown to the author."""
    lessons: bool = True
    """Whether lessons and winners of earlier runs are used, and this run's are kept for later ones."""
    knowledge: tuple[str, ...] = Field(default=(), strict=False)
    """Folders of documents that briefs may quote: a chip's manual, a house style."""
    plugins: tuple[str, ...] = Field(default=(), strict=False)
    """Folders of your own ops, backends, strategies, agents and moves; their code is run."""
    replays: str | None = None
    """Run whose recorded replies are given again instead of asking a language model."""
    journal_url: str | None = None
    """SQLAlchemy URL of a shared journal; None keeps it in the run folder."""

    def who_runs_the_rest(self) -> Rest:
        """Return who runs what the winners leave of the model: beside torch.compile only compiled code can win."""
        return self.rest or ("inductor" if self.against is Against.COMPILED else "eager")

    def on_a_gpu(self) -> "RunConfig":
        """Return the settings of a model that is to run on the GPU, if there is one and nobody said otherwise."""
        if self.device is not None or self.op is not None or self.backend == "cpp":
            return self
        return self.model_copy(update={"device": AUTO_DEVICE})

    def model_options(self) -> ModelOptions:
        """Return what goes with the model's name, as the model process is told it."""
        return ModelOptions(
            inputs=tuple(parse_input(text) for text in self.input),
            input_function=self.input_function,
            dtype=self.dtype,
            device=self.device,
            mode=self.mode,
            download=self.download,
            hf_cache=self.hf_cache,
        )


def recorded(given: Mapping[str, object]) -> RunConfig:
    """Return the settings a journal holds; what it does not name is as it was before there was a setting."""
    return RunConfig.model_validate({"bold": False, **given})


def _refuse_unknown(where: str, values: Mapping[str, object]) -> None:
    """Raise for the first key that is no setting, naming the nearest one that is."""
    known = tuple(RunConfig.model_fields)
    for key in values:
        if key not in known:
            near = get_close_matches(key, known, n=1, cutoff=0.0)[0]
            raise BadConfig(
                where, f"unknown setting {key!r}", f"Did you mean {near!r}? Known: {', '.join(known)}."
            )


def parse_toml(text: str, where: str) -> dict[str, Any]:
    """Return the settings of a configuration file's text."""
    try:
        values = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise BadConfig(where, f"not valid TOML: {error}", "Mend that line or remove the file.") from error
    _refuse_unknown(where, values)
    # TOML has lists only, and a strict tuple takes none.
    return {key: tuple(value) if isinstance(value, list) else value for key, value in values.items()}


def resolve(flags: Mapping[str, object], file_values: Mapping[str, object], where: str) -> RunConfig:
    """Merge: flags that were given (not None) over the file's values over the defaults."""
    _refuse_unknown("command line", flags)
    given = {key: value for key, value in flags.items() if value is not None}
    try:
        return RunConfig.model_validate({**file_values, **given}, strict=True)
    except ValidationError as error:
        first = error.errors()[0]
        key = str(first["loc"][0])
        source = "command line" if key in given else where
        raise BadConfig(
            source,
            f"setting {key!r}: {first['msg'].removeprefix('Value error, ')}",
            f"Given was {first['input']!r}.",
        ) from error
