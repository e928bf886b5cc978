import pathlib
import sys

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).parent))


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item, call):
    """A failure comes with what the machine's journal says."""
    report = (yield).get_result()
    machine = item.funcargs.get("m") if report.failed and call.when == "call" else None
    if machine:
        said = machine.run("systemctl status evenkeeld --no-pager -n 40 | cut -c1-300; evenkeelctl explain | tail -12; journalctl -k -o cat | grep -iE 'oom|Killed' | tail; "
                           "journalctl -o cat -u init.scope | tail -20", check=False).stdout
        report.sections.append(("machine", said))
