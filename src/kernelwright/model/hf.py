"""Models of transformers: from a folder, from the hub's cache, or a small one of a known type.

1. `hf:FOLDER` reads the folder's config.json; `hf:TYPE` (llama, bert ...) makes a small config of that type; any other
   name is looked up in the hub's cache on this disk.
2. Weights beside the config are loaded; without them the model is drawn at random from the config.
3. Nothing is fetched unless that was asked for, and no code of a repository is ever run.
"""

import importlib
import os
import pwd
from collections.abc import Iterator
from contextlib import contextmanager
from difflib import get_close_matches
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from kernelwright.core.case import DType
from kernelwright.core.errors import ModelNotLoadable, OutOfMemory, PackageMissing
from kernelwright.core.model_spec import Address, InputSpec, ModelOptions
from kernelwright.model.arguments import InputSet
from kernelwright.model.dry_run import said
from kernelwright.model.inputs import from_specs
from kernelwright.model.memory import free_bytes, named_device, size, weight_bytes
from kernelwright.ops._draw import torch_dtype

SMALL = {
    **dict.fromkeys(("hidden_size", "n_embd", "d_model", "embed_dim", "dim"), 256),
    **dict.fromkeys(("intermediate_size", "d_ff", "ffn_dim", "hidden_dim"), 512),
    **dict.fromkeys(("encoder_ffn_dim", "decoder_ffn_dim"), 512),
    **dict.fromkeys(("num_hidden_layers", "n_layer", "n_layers", "num_layers", "num_decoder_layers"), 2),
    **dict.fromkeys(("encoder_layers", "decoder_layers"), 2),
    **dict.fromkeys(("num_attention_heads", "n_head", "n_heads", "num_heads"), 4),
    **dict.fromkeys(("encoder_attention_heads", "decoder_attention_heads"), 4),
    **dict.fromkeys(("num_local_experts", "num_experts", "n_routed_experts"), 8),
    **dict.fromkeys(("moe_intermediate_size", "shared_expert_intermediate_size"), 128),
    **dict.fromkeys(("head_dim", "d_kv", "max_source_positions"), 64),
    **dict.fromkeys(("num_key_value_heads", "num_experts_per_tok", "eos_token_id"), 2),
    **dict.fromkeys(("bos_token_id", "decoder_start_token_id", "n_group", "topk_group"), 1),
    "pad_token_id": 0,
    "max_target_positions": 128,
    "vocab_size": 1024,
}
"""Sizes of `hf:TYPE`: everything a config of that type has of these."""
AUTO = (
    *("AutoModelForSeq2SeqLM", "AutoModelForSpeechSeq2Seq", "AutoModelForMaskedLM", "AutoModelForCausalLM"),
    *("AutoModelForImageClassification", "AutoModel"),
)
"""Where a config names no architecture: the first of these that knows its type."""
WEIGHT_FILES = (
    *("model.safetensors", "model.safetensors.index.json"),
    *("pytorch_model.bin", "pytorch_model.bin.index.json"),
)
LIBRARY_MISTAKES = (AssertionError, AttributeError, ImportError, LookupError, OSError, TypeError, ValueError)
SEQ = 128
"""Tokens of the default input."""


def hub_model(spec: str, address: Address, options: ModelOptions) -> tuple[torch.nn.Module, str]:
    """Return a model of transformers and where its weights come from."""
    hub = _transformers(spec)
    folder = _folder(hub, spec, address.place, options)
    try:
        config = hub.AutoConfig.from_pretrained(folder, trust_remote_code=False) if folder else None
        if config is None:
            config = _small(hub.CONFIG_MAPPING[address.place], address.kwargs)
        _override(spec, config, address.kwargs)
        kind = _model_class(hub, config)
        if folder and any((folder / name).is_file() for name in WEIGHT_FILES):
            dtype: Any = torch_dtype(options.dtype) if options.dtype else "auto"
            found = kind.from_pretrained(folder, config=config, dtype=dtype, local_files_only=True)
            return found, f"weights of {folder}"
        return _random(spec, kind, config, options), "random weights from the config"
    except _mistakes() as error:
        raise ModelNotLoadable(
            spec,
            f"transformers says {said(error)}",
            "Mend its config.json, or give other settings.",
        ) from error


def _mistakes() -> tuple[type[Exception], ...]:
    """Return what transformers raises over a config it cannot build."""
    errors = importlib.import_module("huggingface_hub.errors")
    invalid = getattr(
        errors, "StrictDataclassError", None
    )  # newer versions; it is an Exception like any other
    return (*LIBRARY_MISTAKES, invalid) if invalid is not None else LIBRARY_MISTAKES


def _transformers(spec: str) -> ModuleType:
    try:
        return importlib.import_module("transformers")
    except ImportError as error:
        raise PackageMissing("transformers", repr(spec), "hf") from error


def _folder(hub: ModuleType, spec: str, name: str, options: ModelOptions) -> Path | None:
    """Return the folder with the config; None for a type that transformers knows."""
    if (Path(name) / "config.json").is_file():
        return Path(name)
    if Path(name).is_dir():
        raise ModelNotLoadable(spec, f"{name} holds no config.json", "Save the model with save_pretrained().")
    if name in hub.CONFIG_MAPPING:
        return None
    cached = importlib.import_module("huggingface_hub").try_to_load_from_cache
    # The user's own home: the model process has a home of its own.
    home = Path(pwd.getpwuid(os.getuid()).pw_dir)
    cache = Path(options.hf_cache) if options.hf_cache else home / ".cache" / "huggingface" / "hub"
    try:
        if options.download:
            return _fetched(spec, name, cache)
        if isinstance(found := cached(name, "config.json", cache_dir=cache), str):
            return Path(found).parent
    except ValueError as error:
        raise ModelNotLoadable(spec, f"{name!r} is no name of the hub", "Write hf:owner/name.") from error
    near = get_close_matches(name, list(hub.CONFIG_MAPPING), n=1, cutoff=0.8)
    hint = f", or did you mean hf:{near[0]}" if near else ""
    raise ModelNotLoadable(
        spec,
        f"it is no folder, no model type{hint}, and not in {cache}",
        "Pass --download to fetch it, --hf-cache for another cache, or give a folder with its config.json.",
    )


def _fetched(spec: str, name: str, cache: Path) -> Path:
    """Return the folder of a public model of the hub, fetched if it is not complete on this disk."""
    snapshot = importlib.import_module("huggingface_hub").snapshot_download
    try:
        for weights in ("*.safetensors", "*.bin"):
            folder = Path(snapshot(name, cache_dir=cache, allow_patterns=["*.json", weights], token=False))
            if any((folder / file).is_file() for file in WEIGHT_FILES):
                break
        return folder
    except OSError as error:  # the hub's own errors, no network, no room
        raise ModelNotLoadable(
            spec,
            f"{name} could not be fetched: {said(error)}",
            f"If it is gated: run `hf download {name}` with your own login, then leave out --download.",
        ) from error


def _small(kind: Any, given: dict[str, Any]) -> Any:
    """Return a small config of a type; what was given decides, not what is small."""
    config = kind()
    sizes = {key: value for key, value in SMALL.items() if key in config.to_dict()}
    if "kv_lora_rank" in config.to_dict():  # latent attention has as many key heads as query heads
        sizes["num_key_value_heads"] = sizes["num_attention_heads"]
    parts = {key: getattr(config, key, None) for key in kind.sub_configs}
    inner = {key: _small(type(part), {}) for key, part in parts.items() if part is not None}
    return kind(**(sizes | inner | {key: value for key, value in given.items() if key in config.to_dict()}))


def _override(spec: str, config: Any, given: dict[str, Any]) -> None:
    known = config.to_dict()
    for key, value in given.items():
        if key not in known:
            near = get_close_matches(key, known, n=1, cutoff=0.0)[0]
            raise ModelNotLoadable(spec, f"its config has no {key!r}", f"Did you mean {near!r}?")
        setattr(config, key, value)
    if "use_cache" not in given:
        for part in (config, config.get_text_config()):
            part.use_cache = False  # a call returns tensors then; a cache grows from call to call


def _model_class(hub: ModuleType, config: Any) -> Any:
    for name in config.architectures or ():
        if hasattr(hub, name):
            return getattr(hub, name)
    for name in AUTO:
        mapping = getattr(hub, name)._model_mapping
        if type(config) in mapping:
            found = mapping[type(config)]
            return found[0] if isinstance(found, tuple) else found
    raise ValueError(f"no model class for {type(config).__name__}")


@contextmanager
def _built_as(dtype: torch.dtype, device: torch.device) -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        with device:
            yield
    finally:
        torch.set_default_dtype(before)


def _random(spec: str, kind: Any, config: Any, options: ModelOptions) -> torch.nn.Module:
    """Return a model drawn from its config, refusing one whose weights do not fit before they are made."""
    device = named_device(options.device or "cpu")
    dtype = torch_dtype(options.dtype) if options.dtype else getattr(config, "dtype", None) or torch.float32
    with _built_as(dtype, torch.device("meta")):
        need = weight_bytes(kind(config))
    free = free_bytes(device)
    if need > free:
        raise OutOfMemory(
            spec,
            f"its weights need {size(need)} in {str(dtype).removeprefix('torch.')}",
            f"{size(free)} are free on {device}",
            f"A config {need / free:.1f} times smaller fits; try fewer layers, or --dtype bf16.",
        )
    torch.manual_seed(0)
    with _built_as(dtype, device):
        module = kind(config)
    _unsettle(module)
    return module


def _unsettle(module: torch.nn.Module) -> None:
    """Draw weights that start as all ones or all zeros: they would hide a kernel that drops them."""
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for weight in module.parameters():
            if weight.ndim == 1 and weight.numel() > 1 and bool((weight == weight[0]).all()):
                weight += (torch.rand(weight.shape, generator=generator) - 0.5).to(weight)


def hub_inputs(spec: str, module: Any) -> tuple[InputSet, ...]:
    """Return the inputs a model of transformers takes, at a modest size. `Any`: a PreTrainedModel."""
    config = module.config
    longest = getattr(config, "max_position_embeddings", None) or getattr(config, "n_positions", None) or SEQ

    def tokens(name: str, axis: str, seq: int) -> InputSpec:
        return InputSpec(name=name, shape=(1, seq), axes=("batch", axis), dtype=DType.INT64)

    match module.main_input_name:
        case "input_ids":
            specs = [tokens("input_ids", "seq", min(SEQ, longest))]
        case "pixel_values":
            vision = getattr(config, "vision_config", config)
            edge = vision.image_size if isinstance(vision.image_size, int) else vision.image_size[0]
            shape: tuple[int, ...] = (1, vision.num_channels, edge, edge)
            specs = [InputSpec(name="pixel_values", shape=shape, axes=("batch", None, None, None))]
        case "input_features":
            shape = (1, config.num_mel_bins, 2 * config.max_source_positions)
            specs = [InputSpec(name="input_features", shape=shape, axes=("batch", None, None))]
        case "input_values":
            specs = [InputSpec(name="input_values", shape=(1, 16000), axes=("batch", "samples"))]
        case name:
            raise ModelNotLoadable(
                spec, f"its main input is {name!r}, of unknown shape", f"Give it: --input {name}=1,64:fp32."
            )
    if config.is_encoder_decoder:
        specs.append(tokens("decoder_input_ids", "decoder_seq", SEQ // 4))
    return from_specs(specs, module, module.dtype)
