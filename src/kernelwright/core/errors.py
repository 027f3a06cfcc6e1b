"""Our own failures: one class per mistake, each message names the thing, the value and the next step.

A candidate's failure is never an exception: it is a `Status`. Exit codes are documented in docs/cli.md.
"""

import math
import shlex
from collections.abc import Sequence
from difflib import get_close_matches
from pathlib import Path


class KernelwrightError(Exception):
    """Something the user can mend; the message says how."""


class UnknownName(KernelwrightError):
    """A name that is not in its drawer."""

    def __init__(self, what: str, name: str, known: Sequence[str]) -> None:
        near = get_close_matches(name, known, n=1)
        hint = f" Did you mean {near[0]!r}?" if near else ""
        super().__init__(f"Unknown {what} {name!r}.{hint} Known: {', '.join(sorted(known)) or 'none'}.")


class AmbiguousName(KernelwrightError):
    """Two distributions register the same name in the same drawer."""

    def __init__(self, drawer: str, name: str) -> None:
        super().__init__(
            f"The name {name!r} is registered more than once in {drawer!r}. Uninstall one of the packages."
        )


class BrokenPlugin(KernelwrightError):
    """A file in a drawer that cannot be imported."""

    def __init__(self, drawer: str, name: str, cause: str) -> None:
        super().__init__(f"{drawer}/{name} cannot be imported: {cause}. Mend or uninstall it.")


class BadConfig(KernelwrightError):
    """A setting that does not exist or has a value it cannot have."""

    def __init__(self, where: str, problem: str, remedy: str) -> None:
        super().__init__(f"{where}: {problem}. {remedy}")


class BadInput(KernelwrightError):
    """A file or a word on the command line that cannot be what it was given as."""

    def __init__(self, what: str, problem: str, remedy: str) -> None:
        super().__init__(f"{what}: {problem}. {remedy}")


class BadCall(KernelwrightError):
    """A call of a tool whose arguments are not what the tool takes."""

    def __init__(self, tool: str, argument: str, problem: str, remedy: str) -> None:
        self.tool, self.argument = tool, argument
        super().__init__(f"Tool {tool!r}, argument {argument!r}: {problem}. {remedy}")


class NotFound(KernelwrightError):
    """A file or folder that is not there."""

    def __init__(self, what: str, path: Path | str, remedy: str) -> None:
        super().__init__(f"{what} {str(path)!r} does not exist. {remedy}")


class NotWritable(KernelwrightError):
    """A place we may not write to."""

    def __init__(self, path: Path | str, cause: str) -> None:
        super().__init__(
            f"Cannot write to {str(path)!r}: {cause}. Choose another place with --home or KERNELWRIGHT_HOME."
        )


class DiskFull(KernelwrightError):
    """No room for an event or a blob; everything acknowledged before is safe."""

    def __init__(self, path: Path | str) -> None:
        super().__init__(
            f"No room left for {str(path)!r}. Everything acknowledged so far is safe; free some space and run "
            "the same command again."
        )


class ScratchFull(DiskFull):
    """No room to build and run candidates in; nothing is wrong with any of them."""

    def __init__(self, path: Path | str) -> None:
        KernelwrightError.__init__(
            self,
            f"No room left to build and run candidates in {str(path)!r}. No verdict was written; free some space "
            "and run the command again, or take the run up with `kernelwright resume`.",
        )


class JournalCorrupt(KernelwrightError):
    """A journal whose file or chain is damaged."""

    def __init__(self, path: Path | str, problem: str) -> None:
        is_file = str(path).endswith(".db")
        run = shlex.quote(str(Path(path).parent)) if is_file else "RUN"
        super().__init__(
            f"Journal {str(path)!r} is damaged: {problem}. Restore the run folder from a copy; "
            f"`kernelwright journal verify {run}` names the first bad event."
        )


class JournalTooNew(KernelwrightError):
    """A journal written by a newer version."""

    def __init__(self, path: Path | str, found: int, known: int) -> None:
        super().__init__(
            f"Journal {str(path)!r} has schema {found}, this version reads up to {known}. Upgrade kernelwright."
        )


class JournalBusy(KernelwrightError):
    """A journal another process is writing."""

    def __init__(self, path: Path | str) -> None:
        super().__init__(
            f"Journal {str(path)!r} is being written by another process. Wait for it or stop it; reading needs "
            "no lock."
        )


class ShelfUnusable(KernelwrightError):
    """A shelf of lessons that cannot be read or written."""

    def __init__(self, path: object, detail: str) -> None:
        super().__init__(
            f"The shelf of lessons {str(path)!r} cannot be used: {detail}. "
            "Move the file away to begin a new one, or pass --no-lessons."
        )


class BlobMissing(KernelwrightError):
    """A blob the journal names but the store does not hold, or holds with other content."""

    def __init__(self, blob_hash: str, problem: str) -> None:
        super().__init__(f"Blob {blob_hash[:12]} {problem}. Copy the whole run folder, `blobs` included.")


class BackendUnavailable(KernelwrightError):
    """A language this machine cannot build or run."""

    def __init__(self, backend: str, missing: str, remedy: str) -> None:
        super().__init__(f"Backend {backend!r} needs {missing}. {remedy}")


class ServiceDied(KernelwrightError):
    """A process of ours ended without an answer."""

    def __init__(self, service: str, detail: str) -> None:
        self.service, self.detail = service, detail
        super().__init__(
            f"The {service} process ended unexpectedly: {detail}. Nothing journalled is lost; run again with "
            "--debug and report it."
        )


class BadFrame(KernelwrightError):
    """Bytes on a channel that are not a frame of the protocol."""

    def __init__(self, problem: str) -> None:
        super().__init__(
            f"Malformed frame: {problem}. This is a bug or a hostile peer; the channel is closed."
        )


class ModelNotLoadable(KernelwrightError):
    """A user's model or function that cannot be loaded."""

    def __init__(self, spec: str, problem: str, remedy: str) -> None:
        super().__init__(f"{spec!r} cannot be loaded: {problem}. {remedy}")


class InputsDoNotFit(KernelwrightError):
    """Inputs a user's model or function cannot be called with."""

    def __init__(self, spec: str, problem: str, remedy: str) -> None:
        super().__init__(f"The inputs do not fit {spec!r}: {problem}. {remedy}")


class OutOfMemory(KernelwrightError):
    """A model, a function or a call of it that is larger than the memory there is."""

    def __init__(self, spec: str, need: str, free: str, remedy: str) -> None:
        super().__init__(f"{spec!r} is out of memory: {need}, and {free}. {remedy}")


class DeviceMissing(KernelwrightError):
    """A device that was asked for and is not there."""

    def __init__(self, device: str, found: str, remedy: str) -> None:
        super().__init__(f"Device {device!r} was asked for, but {found}. {remedy}")


class PackageMissing(KernelwrightError):
    """An optional package that something asked for needs."""

    def __init__(self, package: str, purpose: str, extra: str) -> None:
        super().__init__(
            f"The package {package!r} is not installed; {purpose} needs it. "
            f"Install it: pip install 'kernelwright[{extra}]'."
        )


class NothingToOptimize(KernelwrightError):
    """A model in which no known op was found."""

    def __init__(self, spec: str, known: Sequence[str]) -> None:
        super().__init__(
            f"Model {spec!r} contains none of the ops known here ({', '.join(sorted(known))}). "
            "`kernelwright ops` lists them."
        )


class TargetOutOfReach(KernelwrightError):
    """A speed-up that the device's own limits exclude."""

    def __init__(self, spec: str, target: float, arithmetic: str, limit: float) -> None:
        super().__init__(
            f"A speed-up of {target:g} is out of reach for {spec!r}: {arithmetic}. "
            f"Ask for --target-speedup {math.floor(100 * limit) / 100:g} or less."
        )


class DeviceBusy(KernelwrightError):
    """A device another process is timing on."""

    def __init__(self, device: str, holder: str, waited_s: float) -> None:
        super().__init__(
            f"Device {device} is in use by {holder}; waited {waited_s:.0f} s. Wait for it or stop it."
        )


class DeviceLost(KernelwrightError):
    """A device on which nothing of ours can be started any more: no candidate is to blame."""

    def __init__(self, device: str, detail: str) -> None:
        super().__init__(
            f"Device {device} is lost: {detail}. No verdict was written; when it is back, run the command again, or "
            "take the run up with `kernelwright resume`."
        )


class CalibrationFailed(KernelwrightError):
    """A device whose ceilings could not be measured."""

    def __init__(self, device: str, detail: str) -> None:
        super().__init__(
            f"The ceilings of {device} could not be measured: {detail}. Free the device and run "
            "`kernelwright doctor --calibrate`."
        )


class UnfairClock(KernelwrightError):
    """A candidate was proven faster than itself: nothing may be kept on this machine as it is."""

    def __init__(self, device: str, pairs: int) -> None:
        super().__init__(
            f"The clock on {device} favours one side: a candidate beat itself in {pairs} fresh pairs. "
            "Nothing is kept. Stop other work on the machine and run again."
        )


class LlmFailed(KernelwrightError):
    """An llm that gave no usable answer; what else is known of it is in the subclass."""

    def __init__(self, provider: str, problem: str, remedy: str) -> None:
        self.provider = provider
        self.attempts = 1
        super().__init__(f"The llm at {provider!r} {problem}. {remedy}")


class LlmKeyMissing(LlmFailed):
    """No key for a provider that needs one."""

    def __init__(self, provider: str, variable: str, file_variable: str) -> None:
        super().__init__(
            provider,
            "needs a key and none was found",
            f"Set {variable}, or name a key file in {file_variable}.",
        )


class LlmKeyFileUnsafe(KernelwrightError):
    """A key file that others could read, or that holds no key."""

    def __init__(self, path: Path | str, problem: str) -> None:
        super().__init__(
            f"Key file {str(path)!r} is not used: {problem}. It must be a file of yours with the key alone in it, "
            f"readable by nobody else: chmod 600 {path}"
        )


class LlmKeyRefused(LlmFailed):
    """A key the provider does not accept."""

    def __init__(self, provider: str, where: str) -> None:
        super().__init__(
            provider, "refused the key", f"Check {where}; the key must be allowed to use the model."
        )


class LlmUnknownModel(LlmFailed):
    """A model id the provider does not serve."""

    def __init__(self, provider: str, model: str) -> None:
        super().__init__(provider, f"serves no model {model!r}", "Check the id after `llm:` in --author.")


class LlmQuotaSpent(LlmFailed):
    """An account without money or quota left."""

    def __init__(self, provider: str) -> None:
        super().__init__(
            provider, "says the quota is spent", "Raise it with the provider, then resume the run."
        )


class LlmRateLimited(LlmFailed):
    """A provider that keeps asking to wait."""

    def __init__(self, provider: str, attempts: int, wait_s: float | None) -> None:
        asked = f", the last time for {wait_s:g} s" if wait_s is not None else ""
        super().__init__(
            provider, f"asked to wait {attempts} times{asked}", "Try later, or use fewer authors at once."
        )


class LlmUnreachable(LlmFailed):
    """A server that cannot be connected to."""

    def __init__(self, provider: str, detail: str) -> None:
        super().__init__(provider, f"cannot be reached: {detail}", "Check the address and the network.")


class LlmTimedOut(LlmFailed):
    """A server that did not answer in time."""

    def __init__(self, provider: str, limit_s: float) -> None:
        super().__init__(
            provider,
            f"gave no answer within {limit_s:g} s",
            "Allow more with `,timeout=SECONDS` after the model.",
        )


class LlmServerFailed(LlmFailed):
    """A server that keeps failing."""

    def __init__(self, provider: str, attempts: int, detail: str) -> None:
        super().__init__(provider, f"failed {attempts} times: {detail}", "Try later.")


class LlmContextTooLong(LlmFailed):
    """A prompt that is longer than the model can read."""

    def __init__(self, provider: str, model: str) -> None:
        super().__init__(
            provider,
            f"cannot read a prompt of this length with {model!r}",
            "Use a model with a longer context.",
        )


class LlmRequestRefused(LlmFailed):
    """A request the provider does not take."""

    def __init__(self, provider: str, detail: str) -> None:
        super().__init__(
            provider, f"refused the request: {detail}", "Check the options after the model in --author."
        )


class LlmBadReply(LlmFailed):
    """An answer that is not what was asked for."""

    def __init__(self, provider: str, detail: str) -> None:
        super().__init__(provider, f"gave an unusable answer: {detail}", "Use a more capable model.")


class LlmCancelled(LlmFailed):
    """A question nobody waits for any more."""

    def __init__(self, provider: str) -> None:
        super().__init__(provider, "was told to stop before it answered", "Nothing is to be done.")


class LlmNotRecorded(LlmFailed):
    """A question that the recorded run never asked."""

    def __init__(self, provider: str, role: str, used: int, total: int) -> None:
        super().__init__(
            provider,
            f"was never asked this as {role} in the recording ({used} of {total} recorded replies were given)",
            "The search took another way here: replay with --recorded-verdicts, with the version and the settings "
            "that recorded the run.",
        )


class ReplayEnded(KernelwrightError):
    """A replay that asks for a reply nobody recorded."""

    def __init__(self, words: str) -> None:
        super().__init__(words)


class CannotReplay(KernelwrightError):
    """A run that cannot be repeated from its recording."""

    def __init__(self, run: str, problem: str, remedy: str) -> None:
        super().__init__(f"Run {run!r} cannot be replayed: {problem}. {remedy}")


class CannotResume(KernelwrightError):
    """A run whose verdicts could not be held against those of this machine's judge."""

    def __init__(self, run: str, problem: str) -> None:
        super().__init__(
            f"Run {run!r} cannot be taken up: {problem}. "
            f"`kernelwright rejudge {run}` certifies its winners here, a new run searches on from them."
        )
