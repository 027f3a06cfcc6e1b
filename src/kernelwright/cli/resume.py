"""`kernelwright resume`: take up a run that was interrupted."""

from kernelwright.cli.optimize import told
from kernelwright.cli.runs import RunArgument, TrustFlag
from kernelwright.cli.screen import HomeOption, JsonFlag, kernelwright_home


def resume(
    run: RunArgument = "last", trust: TrustFlag = False, as_json: JsonFlag = False, home: HomeOption = None
) -> int:
    """Go on with a run where its journal ends; no finished evaluation is repeated."""
    from kernelwright.cli.live import watching
    from kernelwright.engine.app import resume as take_up
    from kernelwright.store.locate import find_run

    place = kernelwright_home(home)
    folder = find_run(place, run)
    with watching() as (tell, watch):
        take_up(folder, place, tell, watch, trusted=trust)
    return told(folder, None, as_json)
