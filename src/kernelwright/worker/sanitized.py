"""Plans under compute-sanitizer: every tensor in an allocation of its own, so that a byte beyond it is an error.

Started as `python -m kernelwright.worker.sanitized JOB INPUTS`, with torch's caching of memory switched off. Trusted
code that loads a candidate's device code; what is found is told by the sanitizer's own exit code and words.
"""

import sys
from pathlib import Path

import torch

from kernelwright.backends._tensors import torch_dtype
from kernelwright.core.messages.runner import DeviceJob
from kernelwright.worker.launcher import Modules, PreparedCall


def main(job_file: str, inputs_file: str) -> None:
    """Run every call of a job once; inputs lie in the file one after the other."""
    job = DeviceJob.model_validate_json(Path(job_file).read_text())
    raw, offset = bytearray(Path(inputs_file).read_bytes()), 0
    torch.cuda.set_device(job.index)
    modules = Modules(Path(job.folder))
    for call in job.calls:
        case, plan = job.cases[call.case], job.plans[call.case]
        storages: dict[str, torch.Tensor] = {}
        for spec in case.inputs:
            kind, nbytes = torch_dtype(spec.dtype), spec.storage_elements * spec.dtype.itemsize
            storages[spec.name] = torch.empty(spec.storage_elements, dtype=kind, device="cuda")
            if nbytes:
                part = torch.frombuffer(raw, dtype=kind, count=spec.storage_elements, offset=offset)
                storages[spec.name].copy_(part)
            offset += nbytes
        for spec in case.outputs:
            kind = torch_dtype(spec.dtype)
            storages[spec.name] = torch.empty(spec.storage_elements, dtype=kind, device="cuda")
        addresses = {
            spec.name: storages[spec.name].data_ptr() + spec.offset * spec.dtype.itemsize
            for spec in (*case.inputs, *case.outputs)
        }
        if plan is not None:
            prepared = PreparedCall(plan, case, modules, addresses)
            for own in (room for launch in prepared.launches for room in launch.scratch if room is not None):
                own.zero_()  # the compiler writes its tensor descriptors by a copy initcheck does not see
            prepared.run()
            torch.cuda.synchronize()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
