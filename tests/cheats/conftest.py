"""Exploits run through the real judge, like every candidate."""

from tests.cpu.conftest import judge, problem

__all__ = ["judge", "problem"]
