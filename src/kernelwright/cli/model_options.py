"""How every verb that takes a model is told which one, with which inputs, where and how."""

from collections.abc import Mapping, Sequence
from typing import Annotated

import typer

from kernelwright.cli.config import load_config
from kernelwright.core.config import RunConfig

ModelArgument = Annotated[
    str | None,
    typer.Argument(help="The model: `path.py:factory`, `package.module:Class` or `hf:NAME-or-folder`."),
]
InputOption = Annotated[
    list[str] | None,
    typer.Option(
        "--input",
        help="Shape and type of an input, such as `1,512:int64`, or `mask=1@batch,512@seq:bool` for a keyword "
        "with named axes; may be repeated. Default: the model's own sample_inputs(seed).",
    ),
]
InputFunctionOption = Annotated[
    str | None, typer.Option(help="Function of the model's file that makes the inputs from a seed.")
]
DTypeOption = Annotated[
    str | None,
    typer.Option("--dtype", help="Element type of the weights: fp32, fp16, bf16. Default: as built."),
]
DeviceOption = Annotated[
    str | None,
    typer.Option(
        help="Where it runs: cpu, cuda, cuda:1, auto (a GPU if there is one). Default: where it was built."
    ),
]
ModeOption = Annotated[
    str | None,
    typer.Option(help="How it is called: inference, eval (gradients recorded) or train. Default: inference."),
]
DownloadFlag = Annotated[
    bool | None,
    typer.Option("--download", help="Fetch a model of the Hugging Face hub that is not on this disk."),
]
HfCacheOption = Annotated[
    str | None,
    typer.Option(help="Folder of models fetched from the hub. Default: ~/.cache/huggingface/hub."),
]

RestOption = Annotated[
    str | None,
    typer.Option(
        help="Who runs the rest of the model beside the winners: eager or inductor. Default: as the baseline."
    ),
]


def model_flags(
    model: str | None,
    inputs: Sequence[str] | None,
    input_function: str | None,
    dtype: str | None,
    device: str | None,
    mode: str | None,
    download: bool | None,
    hf_cache: str | None,
) -> dict[str, object]:
    """Return the options above as settings."""
    return {
        "model": model,
        "input": tuple(inputs) if inputs else None,
        "input_function": input_function,
        "dtype": dtype,
        "device": device,
        "mode": mode,
        "download": download,
        "hf_cache": hf_cache,
    }


def model_config(verb: str, flags: Mapping[str, object]) -> tuple[RunConfig, str]:
    """Return the resolved settings of a verb that needs a model, and the model."""
    from kernelwright.core.errors import BadConfig

    config = load_config(flags)
    if config.model is None:
        raise BadConfig("command line", "no model given", f"For example: kernelwright {verb} model.py:build")
    config.model_options()  # an input that cannot be read is refused before anything is started
    return config, config.model
