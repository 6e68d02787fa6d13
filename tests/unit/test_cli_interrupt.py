"""Ctrl-C while a command is still importing its modules, at a place that is known: real processes, real signals."""

import os
import signal
import subprocess
import sys

import pytest

from isochrone.cli import COMMANDS, early

#: sends its own process a SIGINT when a module is about to be imported
PROGRAM = """
import os, runpy, signal, sys

signal.signal(signal.SIGINT, signal.default_int_handler)  # a background shell's children ignore it

class Interrupting:
    def find_spec(self, name, path=None, target=None):
        if name == {module!r}:
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, Interrupting())
sys.argv = ["isochrone", *{arguments!r}]
runpy.run_module("isochrone.cli", run_name="__main__", alter_sys=True)
print("it went on")
"""


def interrupted(module, *arguments):
    program = PROGRAM.format(module=module, arguments=list(arguments))
    return subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=False
    )


@pytest.mark.parametrize(
    "module", ["nothing", "click", "click.core", "isochrone.cli.map", "isochrone.cli.map_files"]
)
def test_ctrl_c_during_imports_ends_without_a_word(module):
    done = interrupted(module, "map", "lookup", "/nowhere")
    if module == "nothing":  # nobody imports it: the program itself is sound
        assert done.returncode == 2
        assert "/nowhere: can't be read" in done.stderr
        return
    assert (done.returncode, done.stdout, done.stderr.strip("\n")) == (130, "", "")


@pytest.mark.parametrize("command", sorted(COMMANDS))
def test_every_command_ends_so_while_its_own_module_is_imported(command):
    done = interrupted(f"isochrone.cli.{COMMANDS[command]}", command)
    ended = 0 if command in {"run", "agent"} else 130  # these two were told to end, and they did
    assert (done.returncode, done.stdout, done.stderr.strip("\n")) == (ended, "", "")


def test_who_imports_the_command_line_keeps_their_handler():
    def mine(number, frame):
        raise AssertionError

    before = signal.signal(signal.SIGINT, mine)
    try:
        early.begin()
        assert signal.getsignal(signal.SIGINT) is mine
        early.over()
        assert signal.getsignal(signal.SIGINT) is mine
        signal.signal(signal.SIGINT, signal.default_int_handler)
        early.begin()
        with pytest.raises(SystemExit) as end:
            os.kill(os.getpid(), signal.SIGINT)
        assert end.value.code == 130
        early.over()
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    finally:
        signal.signal(signal.SIGINT, before)
